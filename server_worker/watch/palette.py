"""The colours of live page, report, plots and terminal, named by what they mean.

Text on its ground has a contrast of at least 4.5, on light and on dark. Series are told apart by people who see colours
differently, too: the order is that of Okabe and Ito.
"""

COLOURS = {
    "ground": ("#f3f5f8", "#0e141b"),
    "panel": ("#ffffff", "#161e28"),
    "sunk": ("#eef1f5", "#1d2733"),
    "line": ("#d8dee6", "#2e3a48"),
    "grid": ("#e6eaf0", "#263240"),
    "text": ("#16202c", "#e8edf3"),
    "quiet": ("#566475", "#9dabba"),
    "accent": ("#0b6aa8", "#6cbcf0"),
    "accent-soft": ("#dcedf8", "#173850"),
    "focus": ("#0b6aa8", "#8fd0ff"),
    "good": ("#14703f", "#6fdca0"),
    "good-soft": ("#dcf3e5", "#12382a"),
    "fair": ("#8a5200", "#f2c063"),
    "fair-soft": ("#fdf0d8", "#3c2f12"),
    "bad": ("#b3261e", "#ff9d94"),
    "bad-soft": ("#fce4e2", "#46211f"),
    "c-blue": ("#0068a8", "#5fb8f0"),
    "c-green": ("#00744f", "#43d6a4"),
    "c-pink": ("#a83c7c", "#ee9aca"),
    "c-orange": ("#b04a00", "#ff9a5c"),
    "c-gold": ("#8a6100", "#f0be4a"),
    "c-violet": ("#6a4fc0", "#b5a2ff"),
    "c-grey": ("#5b6876", "#a3b0be"),
    "h-1": ("#f1dfc0", "#46351f"),
    "h-2": ("#d9dfd2", "#3c4640"),
    "h-3": ("#b5d3dc", "#2f5364"),
    "h-4": ("#8ebfdb", "#2d6787"),
    "h-5": ("#63a5cf", "#327fab"),
    "h-6": ("#3c87bb", "#479ccc"),
    "h-7": ("#1c659d", "#76bde5"),
    "h-8": ("#0a4478", "#b9e0f8"),
    "b-1": ("#0068a8", "#4ea6de"),
    "b-2": ("#e0a100", "#f0be4a"),
    "b-3": ("#8fc7e8", "#2c5b7b"),
    "b-4": ("#b04a00", "#ff9a5c"),
    "b-5": ("#7d8896", "#8a97a6"),
    "b-6": ("#a83c7c", "#ee9aca"),
}
"""Name → on light, on dark"""
SERIES = ("c-blue", "c-green", "c-pink", "c-orange", "c-violet", "c-gold")
"""Of lines in a chart, in this order"""
HEAT = ("sunk", "h-3", "h-4", "h-5", "h-6", "h-7", "h-8")
"""Of shares from 0 to 1, on light"""
TERMINAL = {"accent": "cyan", "good": "bold green", "fair": "yellow", "bad": "bold red", "quiet": "dim"}
"""Styles of rich: a terminal has colours of its own for light and dark."""


def light(name: str) -> str:
    return COLOURS[name][0]


def css() -> str:
    variables = "".join(f"--{name}:light-dark({a},{b});" for name, (a, b) in COLOURS.items())
    return f":root{{color-scheme:light dark;{variables}}}"
