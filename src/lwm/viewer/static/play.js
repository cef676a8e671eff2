/* Take the keyboard: a person plays, the chosen run's bonus and latent position are drawn. */
"use strict";
lwm.views.play = async ({ main, query, alive, trail }) => {
  const el = lwm.el, id = query.id ? query.id[0] : "", game = query.game ? query.game[0] : "";
  if (lwm.exported) { throw new Error("a file cannot be played: run lwm view"); }
  trail(lwm.link("run", { id }, id), "play");
  document.title = "lwm: play";
  lwm.fill(main, el("h1", {}, "Play"), el("p", { class: "soft", role: "status" }, "Loading the run and its environment …"));
  const hello = await lwm.post("play", { id, game });
  const session = hello.session;
  const leave = () => { if (!gone) { gone = true; lwm.post("leave", { session }).catch(() => {}); } };
  let gone = false;
  if (!alive()) { leave(); return; }
  const maze = hello.side !== undefined, names = hello.actions, index = new Map(names.map((n, k) => [n, k]));
  const history = { rows: 0, bonus: [], reward: [], ends: [] }, points = [];
  const told = el("p", { id: "told", role: "status" });
  let busy = false, over = false, line = null, view = null;
  const rooms = [], bonuses = [];
  const doors = maze ? Array.from({ length: hello.side ** 2 }, () => [0, 0, 0, 0]) : null;
  const plane = lwm.plane(points, history.ends, null), holder = el("div", {});
  if (maze) { view = lwm.maze(hello.side, doors, "the rooms seen so far"); view.svg.id = "board"; }
  else { view = { canvas: el("canvas", { class: "film", id: "board", role: "img", "aria-label": "the game" }) };
    view.paint = lwm.painter(view.canvas, hello.width, hello.height, 1); }
  const draw = (row) => {
    history.rows++; history.bonus.push(row.bonus); history.reward.push(row.reward);
    if (row.lost) { history.ends.push(history.rows - 1); }
    points.push(row.latent);
    if (maze) {
      rooms.push(row.room); bonuses.push(row.bonus); doors[row.room] = row.doors;
      const side = hello.side, near = [row.room - side, row.room + side, row.room - 1, row.room + 1];
      row.doors.forEach((open, way) => { if (open && doors[near[way]]) { doors[near[way]][[1, 0, 3, 2][way]] = 1; } });
      view.redoor(doors);
      view.show(rooms, bonuses, rooms.length - 1, Math.max(1e-6, ...bonuses.map(Math.abs)));
    } else { view.paint(Uint8Array.from(atob(row.picture), (c) => c.charCodeAt(0)), 0); }
    if (history.rows % 5 === 1 || maze || row.lost) {
      const made = lwm.timeline({ ...history, bonus: history.bonus.slice(), reward: history.reward.slice() }, () => {});
      lwm.fill(holder, made.box); made.resize(); made.show(history.rows - 1); line = made;
      plane.show(points.length - 1); plane.resize();
    }
    plane.show(points.length - 1);
    told.textContent = `step ${row.step}, bonus ${lwm.number(row.bonus, 3)}, return ${lwm.number(row.total)}`
      + (row.end ? ": the episode is over" : row.lost ? ": a life was lost" : "")
      + ` (${row.kept} steps would be saved)`;
    over = row.end;
  };
  const take = async (action) => {
    if (busy || gone || over || !alive()) { return; }
    busy = true;
    try { draw(await lwm.post("step", { session, action })); lwm.problem(""); }
    catch (error) { if (alive()) { lwm.problem(error.message); } }
    busy = false;
  };
  /* The emulator's names: UP, RIGHT, LEFT, DOWN, combined, with FIRE behind. */
  const held = new Set();
  const arrows = { ArrowUp: "UP", ArrowDown: "DOWN", ArrowLeft: "LEFT", ArrowRight: "RIGHT", w: "UP", s: "DOWN", a: "LEFT", d: "RIGHT", " ": "FIRE" };
  const wanted = () => {
    const has = (way) => held.has(way) ? way : "";
    const name = (has("UP") || has("DOWN")) + (has("RIGHT") || has("LEFT")) + has("FIRE");
    return index.get(name || "NOOP") ?? index.get(name.replace("FIRE", "")) ?? index.get("NOOP") ?? 0;
  };
  const key = (event) => {
    if (!alive()) { window.removeEventListener("keydown", key); window.removeEventListener("keyup", key); leave(); return; }
    const way = arrows[event.key];
    if (!way || event.ctrlKey || event.metaKey || /^(SELECT|INPUT)$/.test(event.target.tagName)) { return; }
    if (way === "FIRE" && event.target.tagName === "BUTTON") { return; }
    event.preventDefault();
    if (maze) { if (event.type === "keydown" && index.has(way.toLowerCase())) { take(index.get(way.toLowerCase())); } return; }
    if (event.type === "keydown") { held.add(way); } else { held.delete(way); }
  };
  window.addEventListener("keydown", key); window.addEventListener("keyup", key);
  window.addEventListener("hashchange", () => { if (!alive()) { leave(); } }, { once: true });
  window.addEventListener("pagehide", leave, { once: true });
  window.addEventListener("blur", () => held.clear());
  const saved = el("p", { id: "saved", role: "status" });
  const save = el("button", { type: "button", id: "save", onclick: async () => {
    try {
      const done = await lwm.post("save", { session });
      lwm.fill(saved, `${done.steps} steps saved in ${done.file}. `, done.figure3
        ? el("code", {}, `lwm reproduce figure3 --trajectory DIR/${done.file}`) : "Figure 3 needs a game whose RAM tells the position.");
    } catch (error) { lwm.problem(error.message); }
  } }, "Save the trajectory");
  let running = false;
  const run = el("button", { type: "button", id: "go", onclick: () => { running = !running; run.textContent = running ? "Pause" : "Start"; if (running) { loop(); } } }, "Start");
  /* A step of the agent is 4 frames of the game: 15 a second. */
  const loop = async () => {
    while (running && alive() && !over && !gone) {
      const began = performance.now();
      await take(wanted());
      await new Promise((done) => setTimeout(done, Math.max(0, 1000 / 15 - (performance.now() - began))));
    }
  };
  const press = (name) => el("button", { type: "button", onclick: () => maze ? take(index.get(name)) : take(index.get(name.toUpperCase()) ?? 0) }, { up: "↑", down: "↓", left: "←", right: "→" }[name]);
  const pad = el("div", { class: "keys", role: "group", "aria-label": "directions" }, el("span", {}), press("up"), el("span", {}), press("left"), press("down"), press("right"));
  const games = hello.games.length ? el("select", { "aria-label": "game", onchange: (event) => { location.hash = lwm.hash("play", { id, game: event.target.value }); } },
    hello.games.map((g) => el("option", { value: g, selected: g === hello.game }, g))) : null;
  lwm.fill(main, el("h1", {}, "Play ", hello.game || `labyrinth ${hello.side}×${hello.side}`),
    el("div", { class: "bar" }, maze ? null : run, save, el("button", { type: "button", onclick: () => { leave(); window.dispatchEvent(new HashChangeEvent("hashchange")); } }, "Again"), games),
    el("div", { class: "player" }, el("div", {}, maze ? view.svg : view.canvas, told, pad),
      el("div", {}, plane.box, el("p", { class: "soft small" }, maze ? "The world model's belief" : "The embedding z", ", in its two directions of greatest variance under random steps."))),
    el("h3", {}, "Bonus and reward"), holder,
    saved, el("p", { class: "soft small" }, maze ? "Arrow keys or WASD walk." : "Start, then hold arrow keys or WASD; space fires. A trajectory ends where a life is lost."));
  plane.resize();
  draw(hello.row);
};
