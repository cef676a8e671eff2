/* A labyrinth episode: map, path, visited rooms, bonus as heat, Q-values, prediction against sight. */
"use strict";
(() => {
  const el = lwm.el, CELL = 60, WAYS = [[0, -1], [0, 1], [-1, 0], [1, 0]];
  lwm.WAYS = ["up", "down", "left", "right"];

  const middle = (n, side) => [(n % side + .5) * CELL, (Math.floor(n / side) + .5) * CELL];

  /* Each wall once; a door leaves its middle open. */
  lwm.walls = (doors, side) => {
    let path = "";
    for (let n = 0; n < side * side; n++) {
      const [x, y] = middle(n, side);
      WAYS.forEach(([dx, dy], way) => {
        if ((way === 0 && n >= side) || (way === 2 && n % side)) { return; }
        for (const [from, to] of doors[n][way] ? [[-1, -.42], [.42, 1]] : [[-1, 1]]) {
          const p = [from, to].map((k) => (x + CELL / 2 * (dx + dy * k)) + "," + (y + CELL / 2 * (dy + dx * k)));
          path += "M" + p[0] + "L" + p[1];
        }
      });
    }
    return path;
  };

  /* The map as an SVG element with show(rooms so far, bonus so far). */
  lwm.maze = (side, doors, label) => {
    const size = side * CELL, rooms = [], notes = [];
    const svg = el("svg", { class: "maze", viewBox: `-6 -6 ${size + 12} ${size + 12}`, role: "img", "aria-label": label });
    for (let n = 0; n < side * side; n++) {
      const x = n % side * CELL, y = Math.floor(n / side) * CELL;
      rooms.push(el("rect", { x, y, width: CELL, height: CELL, fill: "var(--line)" }));
      notes.push(el("text", { x: x + 6, y: y + CELL - 7 }));
    }
    const walk = el("polyline", { fill: "none", stroke: "var(--soft)", "stroke-width": 2, "stroke-opacity": ".8", "stroke-linejoin": "round" });
    const walls = el("path", { d: lwm.walls(doors, side), stroke: "var(--ink)", "stroke-width": 3, "stroke-linecap": "square", fill: "none" });
    const agent = el("circle", { r: 10, fill: "var(--c0)", stroke: "var(--ground)", "stroke-width": 2 });
    svg.append(...rooms, walk, walls, ...notes, agent);
    const show = (room, bonus, t, most) => {
      const latest = new Array(side * side).fill(null);
      for (let i = 0; i <= t; i++) { latest[room[i]] = bonus[i]; }
      latest.forEach((value, n) => {
        const share = value === null ? 0 : Math.max(-1, Math.min(1, value / most));
        rooms[n].setAttribute("fill", value === null ? "var(--line)" : share > 0 ? "var(--heat)" : "var(--cold)");
        rooms[n].setAttribute("fill-opacity", value === null ? 1 : .12 + .88 * Math.sqrt(Math.abs(share)));
        notes[n].textContent = value === null ? "" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);
      });
      const path = [];
      for (let i = Math.max(0, t - 60); i <= t; i++) { path.push(middle(room[i], side).join()); }
      walk.setAttribute("points", path.join(" "));
      const [x, y] = middle(room[t], side);
      agent.setAttribute("cx", x); agent.setAttribute("cy", y);
      return latest.filter((v) => v !== null).length;
    };
    return { svg, show, redoor: (now) => walls.setAttribute("d", lwm.walls(now, side)) };
  };

  /* Bars with a name and a number; the greatest stands out. */
  lwm.bars = (names) => {
    const rows = names.map((name) => {
      const fill = el("i", {}), value = el("span", { class: "num" });
      return { line: el("div", {}, el("span", {}, name), el("span", { class: "track" }, fill), value), fill, value };
    });
    return {
      box: el("div", { class: "bars" }, rows.map((r) => r.line)),
      show: (values, low, high) => {
        const best = Math.max(...values);
        values.forEach((v, k) => {
          if (!rows[k]) { return; }
          rows[k].fill.style.width = Math.max(0, Math.min(100, 100 * (v - low) / ((high - low) || 1))) + "%";
          rows[k].value.textContent = lwm.number(v, 4);
          rows[k].line.className = v === best ? "best" : "";
        });
      },
    };
  };

  /* A room with its four doors, each as sure as it was predicted. */
  const room = (label) => {
    const svg = el("svg", { viewBox: "0 0 64 64", width: 96, role: "img", "aria-label": label });
    svg.append(el("rect", { x: 8, y: 8, width: 48, height: 48, fill: "none", stroke: "var(--line)", "stroke-width": 2 }));
    const parts = WAYS.map(([dx, dy]) => el("line", { x1: 32 + 24 * dx - 12 * dy, y1: 32 + 24 * dy - 12 * dx,
      x2: 32 + 24 * dx + 12 * dy, y2: 32 + 24 * dy + 12 * dx, stroke: "var(--c0)", "stroke-width": 6 }));
    svg.append(...parts);
    return { svg, show: (bits) => parts.forEach((p, k) => p.setAttribute("stroke-opacity", Math.max(0, Math.min(1, bits[k])))) };
  };

  lwm.labyrinthPlayer = (data, seek) => {
    const most = Math.max(1e-6, ...data.bonus.map((b) => Math.abs(b || 0)));
    const maze = lwm.maze(data.side, data.doors, "map: rooms coloured by the bonus of the latest visit");
    const q = data.q ? lwm.bars(lwm.WAYS) : null;
    let low = 0, high = 0;
    if (data.q) { low = Infinity; high = -Infinity; for (const row of data.q) { for (const v of row) { low = Math.min(low, v); high = Math.max(high, v); } } }
    const bits = data.prediction && data.prediction[0].length >= 4;
    const told = room("doors predicted"), seen = room("doors seen"), error = el("p", { class: "small" });
    const line = lwm.timeline(data, seek);
    const facts = el("p", {});
    const total = []; data.reward.reduce((sum, r, t) => (total[t] = sum + r), 0);
    const box = el("div", {}, el("div", { class: "player" },
      el("div", {}, maze.svg, el("p", { class: "soft small" }, "Orange: the world model was surprised (bonus above 0); blue: it expected what it saw; grey: not visited.")),
      el("div", {}, facts, q ? el("h3", {}, "Q-values of this step") : null, q ? q.box : null,
        bits ? el("h3", {}, "What the world model predicted, what it saw") : null,
        bits ? el("div", { class: "bar" }, el("figure", { class: "small" }, told.svg, "predicted"), el("figure", { class: "small" }, seen.svg, "seen")) : null,
        bits ? error : null)),
    el("h3", {}, "Bonus of every step"), line.box);
    return {
      box, resize: line.resize,
      show: (t) => {
        const visited = maze.show(data.room, data.bonus, t, most);
        line.show(t);
        if (q) { q.show(data.q[t], low - (high - low) * .05, high); }
        if (bits) {
          told.show(t ? data.prediction[t] : [0, 0, 0, 0]); seen.show(data.seen[t]);
          error.textContent = t ? "predicted " + data.prediction[t].slice(0, 4).map((v, k) => lwm.WAYS[k] + " " + lwm.number(v, 2)).join(", ")
            : "Nothing is predicted for the first row.";
        }
        facts.textContent = `${t ? "went " + lwm.WAYS[data.action[t]] : "start"}, bonus ${lwm.number(data.bonus[t], 3)}, return ${lwm.number(total[t], 4)}, `
          + `${visited} of ${data.side ** 2} rooms visited`;
      },
    };
  };
})();
