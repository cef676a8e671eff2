"""A recorded labyrinth episode that can be played, paused and scrubbed: SVG and a little script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lwm.episodes import Episode, directory_of, list_episodes, read_episode
from lwm.report.page import escape

_MOST = 3
"""Episodes on a page."""
_CELL, _EDGE = 60, 6
_WAYS = ((0, -1), (0, 1), (-1, 0), (1, 0))  # up, down, left, right
_NAMES = ("up", "down", "left", "right")

_SCRIPT = """<script>
document.querySelectorAll(".player").forEach(function (box) {
  var data = JSON.parse(box.querySelector("script").textContent), last = data.room.length - 1;
  var bar = box.querySelector("input"), button = box.querySelector("button");
  var told = box.querySelector("output"), rooms = box.querySelectorAll("rect.room");
  var notes = box.querySelectorAll("text.bonus"), agent = box.querySelector(".agent");
  var path = box.querySelector("polyline"), timer = null;
  function at(n) {
    return [(n % data.side + .5) * data.cell, (Math.floor(n / data.side) + .5) * data.cell];
  }
  function show(t) {
    var latest = {}, walk = [];
    for (var i = 0; i <= t; i++) {
      latest[data.room[i]] = data.bonus[i]; walk.push(at(data.room[i]).join());
    }
    rooms.forEach(function (room, n) {
      var seen = n in latest, share = seen ? latest[n] / data.most : 0;
      room.style.fill = !seen ? "var(--line)" : share > 0 ? "var(--heat)" : "var(--cold)";
      room.style.fillOpacity = seen ? Math.sqrt(Math.abs(share)) : 1;
      var sign = latest[n] < 0 ? "−" : "+";
      notes[n].textContent = seen ? sign + Math.abs(latest[n]).toFixed(1) : "";
    });
    agent.setAttribute("cx", at(data.room[t])[0]); agent.setAttribute("cy", at(data.room[t])[1]);
    path.setAttribute("points", walk.slice(-40).join(" "));
    var text = "step " + t + " of " + last + (t ? ", went " + data.action[t] : ", start")
      + ", bonus " + data.bonus[t].toFixed(2) + ", return " + data.total[t];
    told.textContent = text.replace(/-/g, "−"); bar.value = t;
    bar.setAttribute("aria-valuetext", text);
  }
  function stop() { clearInterval(timer); timer = null; button.textContent = "Play"; }
  button.addEventListener("click", function () {
    if (timer) { stop(); return; }
    if (+bar.value >= last) { show(0); }
    button.textContent = "Pause";
    timer = setInterval(function () {
      if (+bar.value >= last) { stop(); } else { show(+bar.value + 1); }
    }, Math.max(60, Math.min(500, 15000 / last)));
  });
  bar.addEventListener("input", function () { stop(); show(+bar.value); });
  box.querySelector(".controls").hidden = false; show(Math.min(last, Math.ceil(last / 2)));
});
</script>
"""


def players(found: Sequence[Path]) -> list[str]:
    """One for the first labyrinth episode of each run that has some, three at most."""
    made: list[str] = []
    for run in found:
        for path in list_episodes(directory_of(run)):
            episode = read_episode(path)
            if len(made) < _MOST and {"room", "doors"} <= episode.fields.keys():
                made.append(_player(episode, f"{run}, {path.name.partition('.')[0]}"))
                break
    if made:
        made[-1] += _SCRIPT
    return made


def contents(episode: Episode) -> dict[str, Any]:
    """What the script needs to know of an episode."""
    f = episode.fields
    bonus = np.asarray(f["r_in"], np.float64)
    return {
        "side": round(len(f["doors"]) ** 0.5),
        "cell": _CELL,
        "room": [int(n) for n in f["room"]],
        "bonus": [round(float(b), 3) for b in bonus],
        "most": max(float(np.abs(bonus).max()), 1e-6),
        "action": [_NAMES[int(a)] for a in f["a_tm1"]],
        "total": [round(float(r), 2) for r in np.cumsum(f["r_t"])],
    }


def _player(episode: Episode, where: str) -> str:
    data = contents(episode)
    side, last = data["side"], len(data["room"]) - 1
    size = side * _CELL
    latest = {room: bonus for room, bonus in zip(data["room"], data["bonus"], strict=True)}
    drawn = []
    for number in range(side * side):
        share = latest.get(number, 0.0) / data["most"]
        fill = "--line" if number not in latest else "--heat" if share > 0 else "--cold"
        clear = abs(share) ** 0.5 if number in latest else 1
        x, y = number % side * _CELL, number // side * _CELL
        drawn.append(
            f'<rect class="room" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" '
            f'style="fill:var({fill});fill-opacity:{clear:.2f}"/>'
            f'<text class="bonus" x="{x + 6}" y="{y + _CELL - 7}">'
            f"{_signed(latest[number]) if number in latest else ''}</text>"
        )
    points = " ".join(f"{x:g},{y:g}" for x, y in (_middle(n, side) for n in data["room"][-40:]))
    drawn.append(
        f'<polyline points="{points}" fill="none" stroke="var(--soft)" stroke-width="2" '
        'stroke-opacity=".7" stroke-linejoin="round"/>'
    )
    drawn += _walls(episode.fields["doors"], side)
    x, y = _middle(data["room"][-1], side)
    drawn.append(f'<circle class="agent" cx="{x:g}" cy="{y:g}" r="10" fill="var(--blue)" '
                 'stroke="var(--ground)" stroke-width="2"/>')  # fmt: skip
    title = f"{side}×{side} labyrinth, {episode.meta['agent']}: {last} steps"
    # Inside a script element only its end tag needs hiding.
    packed = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    box = f"{-_EDGE} {-_EDGE} {size + 2 * _EDGE} {size + 2 * _EDGE}"
    return (
        f'<div class="player"><h3>{escape(title)}</h3>'
        f'<svg viewBox="{box}" width="480" role="img" '
        f'aria-label="{escape(title)}, rooms coloured by the bonus of the latest visit">'
        f"{''.join(drawn)}</svg>"
        '<div class="controls" hidden><button type="button">Play</button>'
        f'<input type="range" min="0" max="{last}" value="{last}" aria-label="step"></div>'
        f"<output>step {last} of {last}, return {data['total'][-1]:g}</output>"
        '<p class="soft">Orange: the world model was surprised (bonus above 0); blue: it expected '
        f"what it saw; grey: not visited. From {escape(where)}.</p>"
        f'<script type="application/json">{packed}</script></div>\n'
    )


def _walls(doors: Any, side: int) -> list[str]:
    """Each wall once; a door leaves its middle open."""
    lines, half = [], _CELL / 2
    for number in range(side * side):
        x, y = _middle(number, side)
        for way, (dx, dy) in enumerate(_WAYS):
            # A wall between two rooms is drawn by the one to its left or above it.
            if (way == 0 and number >= side) or (way == 2 and number % side):
                continue
            pieces = ((-1.0, -0.42), (0.42, 1.0)) if doors[number][way] else ((-1.0, 1.0),)
            for start, end in pieces:
                (x1, y1), (x2, y2) = (
                    (x + half * (dx + dy * k), y + half * (dy + dx * k)) for k in (start, end)
                )
                lines.append(
                    f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="var(--ink)" '
                    'stroke-width="3" stroke-linecap="square"/>'
                )
    return lines


def _middle(number: int, side: int) -> tuple[float, float]:
    return (number % side + 0.5) * _CELL, (number // side + 0.5) * _CELL


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
