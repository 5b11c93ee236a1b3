"""How Sphinx builds the site; scripts/build_docs.py runs it."""

import os

project = "Foretrace"
author = "The Foretrace authors"
copyright = "The Foretrace authors, Apache-2.0"
version = release = os.environ.get("FORETRACE_VERSION", "")
extensions = ["myst_parser"]
suppress_warnings = ["toc.not_included"]  # rules and analyses: build_docs.py says why
html_use_index = False
html_show_search_summary = False  # it would fetch the pages found, which a browser refuses for files
exclude_patterns = ["files"]
myst_heading_anchors = 6
highlight_language = "none"  # a block without a language is a command or a table
html_theme = "furo"
html_title = "Foretrace"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False  # the Markdown lies beside each page
html_show_sourcelink = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
