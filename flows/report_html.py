"""The report as one HTML file: no script, no network, images inside; light or dark, wide or narrow."""

from html import escape

from markdown_it import MarkdownIt

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}</body>
</html>
"""
_STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #fff; --soft: #6b6b70; --line: #dcdce0;
  --card: #eef4f9; --mark: #2f6f9f }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e8; --paper: #17181a; --soft: #9c9ca3; --line: #36373b; --card: #1e2a35; --mark: #7fb4dc }
  img { filter: invert(.91) hue-rotate(180deg) }
}
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 0 auto; padding: 1rem 1rem 4rem; overflow-wrap: anywhere }
h1 { font-size: 1.4rem; line-height: 1.25; margin: .5rem 0 1rem }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem }
blockquote { margin: 0 0 1rem; padding: .7rem 1rem; background: var(--card); border-left: 4px solid var(--mark);
  border-radius: 4px }
blockquote p { margin: .3rem 0 }
blockquote p:first-child { font-size: 1.15rem }
blockquote p + p { color: var(--soft); font-size: .85rem }
table { display: block; overflow-x: auto; border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: normal }
th { color: var(--soft); font-weight: 500 }
td:last-child { min-width: 8rem }
td code { display: inline-block; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  vertical-align: bottom }
img { max-width: 100%; height: auto; display: block; margin: .8rem 0 }
code, pre { font-size: .85em }
pre { white-space: pre-wrap }
"""


def page(title: str, markdown: str) -> str:
    """The report's markdown, whose images are data URIs, as a page; markup in it is shown and not obeyed."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return _PAGE.format(title=escape(title), style=_STYLE, body=body)
