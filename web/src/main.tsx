/** The page begins here: finds its data, then draws the shell with one view in it. */
import { render } from "preact"
import { EmbeddedSource, HttpSource } from "./data/source"
import { start } from "./data/state"
import "./base/tokens.css"
import "./components/page.css"
import { Shell } from "./views/shell"

const root = document.getElementById("page")
if (root) {
  start(EmbeddedSource.present() ? new EmbeddedSource() : new HttpSource())
  root.replaceChildren()
  render(<Shell />, root)
}
