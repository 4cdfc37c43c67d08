"""Line plots as SVG text, without a plotting library."""

import math
import pathlib
from xml.sax.saxutils import escape

COLORS = ("#1f5fa8", "#c8501e", "#2e8540", "#7a3e9d", "#8a6d1a", "#555555")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 340, 58, 12, 34, 46


def _ticks(low, high):
    """About five round numbers from low to high."""
    span = high - low
    step = next(m * 10.0**e for e in range(-9, 12) for m in (1, 2, 5) if span / (m * 10.0**e) <= 6)
    first = -(-low // step)
    return [round(step * (first + i), 10) for i in range(int((high - step * first) / step + 1e-9) + 1)]


def _number(value):
    return f"{value:g}" if abs(value) < 10000 else f"{value / 1024:g}K"


class Axis:
    def __init__(self, values, begin, end, lowest=None):
        low, high = min(values), max(values)
        low = low if lowest is None else lowest
        self.low, self.high = low, high if high > low else low + 1
        self.begin, self.end = begin, end

    def __call__(self, value):
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self):
        return _ticks(self.low, self.high)


class LogAxis(Axis):
    """Of positive values, with a tick at each power of two."""

    def __call__(self, value):
        return self.begin + math.log(value / self.low) / math.log(self.high / self.low) * (self.end - self.begin)

    def ticks(self):
        return [2.0**e for e in range(math.ceil(math.log2(self.low)), math.floor(math.log2(self.high)) + 1)]


def line_plot(path, *args, **options):
    pathlib.Path(path).write_text(line_plot_text(*args, **options))


def line_plot_text(title, x_label, y_label, series, points=False, log=False, dashed=None):
    """series: {name: [(x, y), ..]}; y starts at 0. points: marks as well as lines. log: both axes are logarithmic.
    dashed: {name of a series: points} of a second line in its color."""
    every = [p for s in (*series.values(), *(dashed or {}).values()) for p in s]
    kind, lowest = (LogAxis, None) if log else (Axis, 0)
    x = kind([p[0] for p in every], LEFT, WIDTH - RIGHT)
    y = kind([p[1] for p in every], HEIGHT - BOTTOM, TOP, lowest=lowest)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
             f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
             f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>']
    for tick in x.ticks():
        lines += [f'<line x1="{x(tick):.1f}" y1="{TOP}" x2="{x(tick):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>',
                  f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(tick)}</text>']
    for tick in y.ticks():
        lines += [f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{WIDTH - RIGHT}" y2="{y(tick):.1f}" stroke="#e4e4e4"/>',
                  f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>']
    lines += [f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
              f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">'
              f'{escape(y_label)}</text>']
    for i, (name, points_of) in enumerate(series.items()):
        color = COLORS[i % len(COLORS)]
        lines += [_polyline(x, y, points_of, f'stroke="{color}" stroke-width="1.8"'),
                  *(_polyline(x, y, other, f'stroke="{color}" stroke-width="1" stroke-dasharray="4 3"')
                    for of, other in (dashed or {}).items() if of == name)]
        if points:
            lines += [f'<circle cx="{x(px):.1f}" cy="{y(py):.1f}" r="2.6" fill="{color}"/>' for px, py in points_of]
        row = TOP + 20 + 16 * i if log else HEIGHT - BOTTOM - 10 - 16 * (len(series) - 1 - i)
        left = LEFT + 12 if log else WIDTH - 178
        lines += [f'<line x1="{left}" y1="{row - 4}" x2="{left + 20}" y2="{row - 4}" stroke="{color}" '
                  'stroke-width="2.5"/>', f'<text x="{left + 26}" y="{row}">{escape(name)}</text>']
    return "\n".join([*lines, "</svg>"]) + "\n"


def _polyline(x, y, points, style):
    at = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)
    return f'<polyline points="{at}" fill="none" {style}/>'
