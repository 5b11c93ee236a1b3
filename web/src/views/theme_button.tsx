/** The theme as the system has it, or light, or dark. */
import type { JSX } from "preact"
import { type Theme, setTheme, theme } from "../data/state"

const THEMES: readonly Theme[] = ["system", "light", "dark"]

export function ThemeButton(): JSX.Element {
  return (
    <p class="themes" role="radiogroup" aria-label="Theme">
      {THEMES.map((option) => (
        <label key={option}>
          <input type="radio" name="theme" value={option} checked={theme.value === option} onChange={() => setTheme(option)} />
          <span>{option}</span>
        </label>
      ))}
    </p>
  )
}
