/* All runs in one table that sorts, filters, and changes by itself. */
"use strict";
lwm.chosen = new Set();
lwm.views.runs = async ({ main, alive }) => {
  const el = lwm.el, rows = new Map(), drawn = new Map();
  const columns = [
    ["id", "run"], ["state", "state"], ["agent", "agent"], ["environment", "environment"], ["preset", "preset"], ["seed", "seed", true],
    ["frames", "frames", true], ["return", "last return", true], ["score", "score", true], ["speed", "frames/s", true],
  ];
  let version = 0, sort = "id", down = false, word = "", first = true;
  const count = el("span", { class: "soft", role: "status" });
  const compare = el("button", { type: "button", disabled: true, onclick: () => {
    location.hash = lwm.hash("compare", { id: [...lwm.chosen], key: "episode/return" });
  } }, "Compare");
  const body = el("tbody", {});
  const heads = columns.map(([key, text, num]) => el("th", { scope: "col", class: num ? "num" : null, "aria-sort": "none" },
    el("button", { type: "button", onclick: () => { down = sort === key ? !down : false; sort = key; draw(); } }, text)));
  const all = el("input", { type: "checkbox", "aria-label": "choose all shown", onchange: () => {
    for (const row of shown()) { if (all.checked) { lwm.chosen.add(row.id); } else { lwm.chosen.delete(row.id); } }
    for (const [id, cells] of drawn) { cells.box.checked = lwm.chosen.has(id); }
    tell();
  } });
  const filter = el("input", { type: "search", placeholder: "filter: lwm 4×4 running", "aria-label": "filter runs",
    oninput: () => { word = filter.value.toLowerCase(); draw(); } });
  const text = (row, key) => {
    const value = row[key];
    if (key === "frames") { return lwm.frames(value) + (row.total > value ? ` (${Math.floor(100 * value / row.total)} %)` : ""); }
    if (key === "speed") { return value === null ? "–" : lwm.number(Math.round(value)); }
    return value === null || value === "" ? "–" : typeof value === "number" ? lwm.number(value) : value;
  };
  const shown = () => {
    const words = word.split(/\s+/).filter(Boolean);
    const found = [...rows.values()].filter((row) => {
      const all = [row.id, row.agent, row.environment, row.preset, row.state, "seed" + row.seed].join(" ").toLowerCase();
      return words.every((w) => all.includes(w));
    });
    const empty = (v) => v === null || v === undefined || v === "";
    const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });
    return found.sort((a, b) => {
      const x = a[sort], y = b[sort];
      if (empty(x) || empty(y)) { return empty(x) - empty(y); }
      return (down ? -1 : 1) * order(x, y) || order(a.id, b.id);
    });
  };
  const fill = (row, cells) => columns.forEach(([key, , num], k) => {
    const cell = cells.list[k], now = text(row, key);
    if (cell.dataset.now === now && key !== "state") { return; }
    cell.dataset.now = now;
    if (key === "id") { cell.replaceChildren(lwm.link("run", { id: row.id }, now)); }
    else if (key === "state") {
      cell.replaceChildren(el("span", { class: "state " + row.state, title: row.notes.join("; ") || null }, row.state + (row.notes.length ? " *" : "")));
    } else { cell.textContent = now; }
    if (num) { cell.className = "num"; }
  });
  const make = (row) => {
    const box = el("input", { type: "checkbox", "aria-label": "choose " + row.id, onchange: () => {
      if (box.checked) { lwm.chosen.add(row.id); } else { lwm.chosen.delete(row.id); }
      tell();
    } });
    box.checked = lwm.chosen.has(row.id);
    const list = columns.map(() => el("td", {}));
    const cells = { box, list, line: el("tr", {}, el("td", {}, box), list) };
    fill(row, cells);
    drawn.set(row.id, cells);
    return cells;
  };
  const tell = () => {
    compare.disabled = !lwm.chosen.size;
    compare.textContent = lwm.chosen.size ? `Compare ${lwm.chosen.size}` : "Compare";
  };
  /* A screenful at once, more when the end comes near. */
  const end = el("p", { class: "soft small" });
  let list = [], until = 0;
  const more = (size) => {
    const lines = list.slice(until, until + size).map((row) => (drawn.get(row.id) || make(row)).line);
    until += lines.length;
    body.append(...lines);
    end.textContent = until < list.length ? `${list.length - until} more below` : "";
  };
  const watcher = new IntersectionObserver((seen) => { if (seen.some((s) => s.isIntersecting) && until < list.length) { more(100); } }, { rootMargin: "600px" });
  const draw = () => {
    list = shown();
    columns.forEach(([key], k) => heads[k].setAttribute("aria-sort", key === sort ? (down ? "descending" : "ascending") : "none"));
    const running = list.filter((row) => row.state === "running").length;
    count.textContent = `${list.length} run${list.length === 1 ? "" : "s"}` + (running ? `, ${running} running` : "");
    const keep = Math.max(60, until);
    until = 0;
    body.replaceChildren();
    more(keep);
    watcher.unobserve(end); watcher.observe(end);
    tell();
  };
  const take = (told) => {
    version = told.version;
    let order = first;
    for (const id of told.gone) { if (rows.delete(id)) { drawn.delete(id); lwm.chosen.delete(id); order = true; } }
    for (const row of told.rows) {
      const old = rows.get(row.id);
      rows.set(row.id, row);
      if (!old || old[sort] !== row[sort] || old.state !== row.state) { order = true; }
      if (drawn.has(row.id)) { fill(row, drawn.get(row.id)); }
    }
    if (order) { draw(); }
    first = false;
    if (told.missing) { lwm.problem("the directory is gone"); }
    if (told.truncated) { lwm.problem("there are too many directories: not all were looked at"); }
  };
  const told = await lwm.get("runs", lwm.exported ? {} : { since: 0 });
  if (!alive()) { return; }
  document.title = "lwm: runs in " + told.root;
  lwm.fill(main, el("h1", {}, "Runs in " + told.root),
    el("div", { class: "bar" }, filter, compare, count, lwm.exportButton("runs", {})),
    el("div", { class: "scroll" }, el("table", { id: "runs" },
      el("thead", {}, el("tr", {}, el("th", {}, all), heads)), body)), end);
  if (!told.rows.length && told.complete) {
    main.append(el("p", { class: "soft" }, "No run here yet. Start one: ", el("code", {}, "lwm train labyrinth --size 3"), ". It appears by itself."));
  }
  take(told);
  for (let rest = told; !rest.complete && alive() && !lwm.exported;) {
    await new Promise((done) => setTimeout(done, 100));
    rest = await lwm.get("runs", { since: version });
    take(rest);
  }
  lwm.poll(alive, async () => take(await lwm.get("runs", { since: version })), 2000);
};
