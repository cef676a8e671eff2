/* The player: play, pause, step, scrub, speed; by buttons and by keys. */
"use strict";
lwm.views.episode = async ({ main, query, alive, trail }) => {
  const el = lwm.el, id = query.id ? query.id[0] : "", n = query.n ? query.n[0] : "0";
  const data = await lwm.get("episode", { id, n });
  if (!alive()) { return; }
  document.title = `lwm: ${id}, episode ${n}`;
  trail(lwm.exported ? id : lwm.link("run", { id }, id), "episode " + n);
  const last = data.rows - 1;
  let now = 0, playing = false, before = 0, rest = 0, wanted = null;
  const bar = el("input", { type: "range", min: 0, max: last, value: 0, "aria-label": "step", id: "scrub" });
  const told = el("output", { id: "step" });
  const button = el("button", { type: "button", id: "play" }, "Play");
  const speeds = [1, 2, 5, 15, 30, 60, 240, 1000];
  const speed = el("select", { "aria-label": "steps per second", id: "speed" }, speeds.map((s) =>
    el("option", { value: s, selected: s === (data.kind === "labyrinth" ? 5 : 15) }, s + " steps/s")));
  /* Many movements of the pointer in one frame are one picture. */
  const seek = (t) => {
    t = Math.max(0, Math.min(last, t));
    if (wanted === null) { requestAnimationFrame(() => { const to = wanted; wanted = null; if (alive()) { show(to); } }); }
    wanted = t;
  };
  const view = data.kind === "labyrinth" ? lwm.labyrinthPlayer(data, seek)
    : data.kind === "images" ? lwm.imagesPlayer(data, seek, (chunk) => lwm.bytes("frames", { id, n, chunk }), alive) : lwm.plainPlayer(data, seek);
  const show = (t) => {
    now = t;
    if (+bar.value !== t) { bar.value = t; }
    told.textContent = `step ${lwm.number(t)} of ${lwm.number(last)}`;
    bar.setAttribute("aria-valuetext", told.textContent);
    view.show(t);
  };
  const stop = () => { playing = false; button.textContent = "Play"; };
  const tick = (time) => {
    if (!playing || !alive()) { return; }
    rest += (time - before) / 1000 * +speed.value; before = time;
    const steps = Math.floor(rest);
    if (steps > 0) { rest -= steps; show(Math.min(last, now + steps)); }
    if (now >= last) { stop(); } else { requestAnimationFrame(tick); }
  };
  const toggle = () => {
    if (playing) { stop(); return; }
    if (now >= last) { show(0); }
    playing = true; rest = 0; before = performance.now(); button.textContent = "Pause";
    requestAnimationFrame(tick);
  };
  const step = (d) => { stop(); show(Math.max(0, Math.min(last, now + d))); };
  button.addEventListener("click", toggle);
  bar.addEventListener("input", () => { stop(); seek(+bar.value); });
  const key = (event) => {
    if (!alive()) { window.removeEventListener("keydown", key); return; }
    if (event.ctrlKey || event.altKey || event.metaKey || /^(SELECT|TEXTAREA)$/.test(event.target.tagName)) { return; }
    const onButton = event.target.tagName === "BUTTON" || event.target.tagName === "A";
    const call = { " ": onButton ? null : toggle, ArrowLeft: () => step(event.shiftKey ? -100 : -1), ArrowRight: () => step(event.shiftKey ? 100 : 1),
      Home: () => step(-last), End: () => step(last) }[event.key];
    if (call) { event.preventDefault(); call(); }
  };
  window.addEventListener("keydown", key);
  lwm.fill(main, el("h1", {}, `${data.meta.environment}, ${data.meta.agent}: score ${lwm.number(data.meta.score)}`),
    el("div", { class: "controls" }, button, el("button", { type: "button", id: "back", onclick: () => step(-1), "aria-label": "one step back" }, "◀"),
      el("button", { type: "button", id: "on", onclick: () => step(1), "aria-label": "one step on" }, "▶"), bar, speed, told, lwm.exportButton("episode", { id, n })),
    view.box, el("p", { class: "soft small" }, "Keys: space plays and pauses, ← and → step (with shift by 100), Home and End."));
  const redraw = () => { if (!alive()) { window.removeEventListener("resize", redraw); window.removeEventListener("lwm-theme", redraw); return; } view.resize(); show(now); };
  window.addEventListener("resize", redraw); window.addEventListener("lwm-theme", redraw);
  view.resize();
  if (view.start) { view.start(); }
  lwm.player = { show, last };
  show(0);
};
