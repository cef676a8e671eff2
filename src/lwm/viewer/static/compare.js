/* Several runs in one chart: runs that differ only in their seed become one line with a band. */
"use strict";
(() => {
  const el = lwm.el, GRID = 200;
  /* 97.5 % points of Student's t, by degrees of freedom. */
  const T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131];

  const at = (curve, x) => {
    const { x: xs, y } = curve;
    if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) { return null; }
    let lo = 0, hi = xs.length - 1;
    while (hi - lo > 1) { const mid = (lo + hi) >> 1; if (xs[mid] <= x) { lo = mid; } else { hi = mid; } }
    const gap = xs[hi] - xs[lo];
    return gap ? y[lo] + (y[hi] - y[lo]) * (x - xs[lo]) / gap : y[lo];
  };

  lwm.band = (curves, kind, smoothing) => {
    let near = Infinity, far = -Infinity;
    for (const c of curves) { if (c.x.length) { near = Math.min(near, c.x[0]); far = Math.max(far, c.x[c.x.length - 1]); } }
    const made = { x: [], y: [], low: [], high: [] };
    if (!isFinite(near)) { return made; }
    const smoothed = curves.map((c) => ({ x: c.x, y: lwm.smooth(c.y, smoothing) }));
    for (let k = 0; k < GRID; k++) {
      const x = near + (far - near) * k / (GRID - 1), values = smoothed.map((c) => at(c, x)).filter((v) => v !== null);
      if (!values.length) { continue; }
      const n = values.length, mean = values.reduce((a, b) => a + b, 0) / n;
      made.x.push(x); made.y.push(mean);
      if (n < 2 || kind === "none") { made.low.push(null); made.high.push(null); continue; }
      if (kind === "range") { made.low.push(Math.min(...values)); made.high.push(Math.max(...values)); continue; }
      const std = Math.sqrt(values.reduce((a, v) => a + (v - mean) ** 2, 0) / (n - 1));
      const half = (T[n - 2] || 1.96 + 2.6 / (n - 1)) * std / Math.sqrt(n);
      made.low.push(mean - half); made.high.push(mean + half);
    }
    return made;
  };

  lwm.views.compare = async ({ main, query, alive, trail }) => {
    const ids = query.id || [];
    let key = query.key ? query.key[0] : "episode/return";
    if (!ids.length) { throw new Error("choose runs in the table first"); }
    let told = await lwm.get("compare", { id: ids, key });
    if (!alive()) { return; }
    trail("compare " + ids.length);
    document.title = "lwm: compare";
    const options = { log: false, smoothing: 0, band: "range", seeds: false };
    let chart = null;
    const legend = el("ul", { class: "legend" }), holder = el("div", {}), notes = el("div", {});
    const groups = () => {
      const found = new Map();
      for (const run of told.runs) {
        if (!run.row || !run.curve) { continue; }
        const name = [run.row.agent, run.row.environment, run.row.preset].join(", ");
        const folder = run.id.replace(/[/-]?seed\d+$/, "");
        const group = name + "\n" + folder;
        if (!found.has(group)) { found.set(group, { name, folder, runs: [] }); }
        found.get(group).runs.push(run);
      }
      const list = [...found.values()];
      for (const g of list) { if (list.filter((o) => o.name === g.name).length > 1) { g.shown = `${g.name} (${g.folder})`; } }
      return list;
    };
    const draw = () => {
      const list = groups(), series = [];
      legend.replaceChildren();
      list.forEach((group, k) => {
        const colour = "c" + k % 8, name = `${group.shown || group.name}`;
        const n = group.runs.length;
        const made = lwm.band(group.runs.map((r) => r.curve), options.band, options.smoothing);
        if (options.seeds) { for (const r of group.runs) { series.push({ name: r.id, colour, thin: true, x: r.curve.x, y: lwm.smooth(r.curve.y, options.smoothing) }); } }
        series.push({ name, colour, ...made });
        legend.append(el("li", {}, el("i", { style: `background:var(--${colour})` }), `${name}: ${n} seed${n > 1 ? "s" : ""}`));
      });
      const given = { title: key + " over frames", series, log: options.log, wide: true, narrow: options.band === "interval", bands: options.band !== "none" };
      if (chart) { chart.update(given); } else { chart = lwm.chart(given); holder.append(chart.box); }
      const faults = told.runs.filter((r) => r.error || !r.curve);
      notes.replaceChildren(...faults.slice(0, 8).map((r) => el("p", { class: "soft small" }, `${r.id}: ${r.error || "has no " + key}`)));
    };
    const pick = (label, values, set) => {
      const made = el("select", { onchange: () => { set(made.value); } }, values.map(([value, text]) => el("option", { value }, text)));
      return el("label", {}, label, made);
    };
    const metric = el("select", { "aria-label": "metric", disabled: !!lwm.exported, onchange: async () => {
      key = metric.value;
      history.replaceState(null, "", lwm.hash("compare", { id: ids, key }));
      await refresh();
    } });
    const keys = () => {
      if (metric.options.length !== told.keys.length) {
        metric.replaceChildren(...told.keys.map((k) => el("option", { value: k }, k)));
      }
      metric.value = key;
    };
    const refresh = async () => {
      try { told = await lwm.get("compare", { id: ids, key }); if (alive()) { keys(); draw(); } }
      catch (error) { lwm.problem(error.message); }
    };
    const check = (text, name) => {
      const box = el("input", { type: "checkbox", onchange: () => { options[name] = box.checked; draw(); } });
      return el("label", {}, box, text);
    };
    const smooth = el("input", { type: "range", min: 0, max: .98, step: .02, value: 0, oninput: () => { options.smoothing = +smooth.value; draw(); } });
    const file = lwm.exported ? null : el("button", { type: "button", onclick: () =>
      lwm.el("a", { href: lwm.address("export", { view: "compare", id: ids, key, hash: location.hash }), download: "" }).click() }, "Export HTML");
    lwm.fill(main, el("h1", {}, "Comparison"), el("div", { class: "bar" }, metric, check("logarithmic", "log"),
      el("label", {}, "smoothing", smooth), pick("band", [["range", "least to greatest seed"], ["interval", "95 % interval of the mean"], ["none", "none"]],
        (value) => { options.band = value; draw(); }), check("every seed", "seeds"), file), legend, holder, notes,
    el("h2", {}, "Runs"), el("ul", {}, ids.slice(0, 200).map((id) => el("li", {}, lwm.link("run", { id }, id)))));
    keys(); draw();
    lwm.poll(alive, refresh, 5000);
  };
})();
