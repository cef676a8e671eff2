/* One run: live curves, settings against the preset, the evaluation beside the paper's number. */
"use strict";
(() => {
  const el = lwm.el;
  lwm.CURVES = [
    ["Return", ["episode/return", "episode/return_last_actor"]], ["Episode length", ["episode/length"]],
    ["Bonus, mean", ["bonus/mean"]], ["Bonus, standard deviation", ["bonus/std"]],
    ["W-MSE loss", ["encoder/loss"]], ["LWM loss", ["world_model/loss"]], ["TD loss", ["dqn/loss"]],
    ["Whitening: condition number", ["encoder/condition"], true], ["Priorities", ["replay/priority", "replay/priority_max"], true],
    ["Frames per second", ["frames_per_second"]],
  ];
  const LOG = /condition|priorit/i;

  const evaluation = ({ result, beside }) => {
    if (result.score === undefined) {
      return [el("p", { class: "soft" }, "Not evaluated yet: a finished run is, any other by ", el("code", {}, "lwm evaluate DIR"), ".")];
    }
    const interval = (result.low ?? null) === null ? "" : `95 %: ${lwm.number(result.low)} to ${lwm.number(result.high)}, `;
    const rows = [["this run", lwm.number(result.score), `${interval}${lwm.number(result.episodes)} episodes at ${lwm.frames(result.frames || 0)} steps`
      + (result.solved === undefined ? "" : `, ${lwm.number(100 * result.solved)} % solved`)]];
    for (const [name, score, remark] of beside) { rows.push([name, lwm.number(score), remark]); }
    return [lwm.table([{ text: "who" }, { text: "score", num: true }, { text: "", wrap: true }], rows, "evaluation")];
  };

  const shown = (value) => typeof value === "number" ? lwm.number(value, 6) : String(value);
  const settings = (list) => {
    const box = el("div", {}), changed = list.filter((row) => row.changed);
    const draw = (all) => {
      const rows = (all ? list : changed).map((row) => [el("code", {}, row.key), row.usual === null || row.usual === undefined ? "–" : shown(row.usual),
        row.changed ? el("strong", {}, shown(row.value)) : shown(row.value), row.doc]);
      box.replaceChildren(rows.length ? lwm.table([{ text: "setting" }, { text: "preset" }, { text: "this run" }, { text: "meaning", wrap: true }], rows, "settings")
        : el("p", {}, "Exactly its preset."),
      el("p", {}, el("button", { type: "button", onclick: () => draw(!all) }, all ? "Only what differs" : `All ${list.length} settings`)));
    };
    draw(false);
    return box;
  };

  lwm.views.run = async ({ main, query, alive, trail }) => {
    const id = query.id ? query.id[0] : "";
    let told = await lwm.get("run", { id });
    if (!alive()) { return; }
    document.title = "lwm: " + id;
    trail(id);
    const charts = new Map(), grid = el("div", { class: "charts" });
    const rest = el("div", { class: "charts" }), top = el("div", {}), results = el("div", {}), films = el("div", {}), options = { log: false, smoothing: 0 };
    const series = (keys) => keys.filter((k) => told.log.curves[k]).map((k, n) => ({ name: k, colour: "c" + n, ...told.log.curves[k] }));
    const draw = () => {
      const { row } = told;
      lwm.fill(top, el("p", {}, el("span", { class: "state " + row.state }, row.state), " · ",
        [row.agent, row.environment, row.preset + " preset", "seed " + row.seed].join(" · "), " · ",
        lwm.frames(row.frames) + (row.total ? " of " + lwm.frames(row.total) : "") + " steps",
        row.speed === null ? "" : " · " + lwm.number(Math.round(row.speed)) + " frames/s"),
      [...new Set([...row.notes, ...told.notes])].map((note) => el("p", { class: "soft" }, note)),
      told.log.damaged ? el("p", { class: "soft" }, `${told.log.damaged} damaged line(s) of its logs are left out.`) : null);
      results.replaceChildren(...evaluation(told.evaluation));
      const marks = told.evaluation.beside.filter(([name]) => name === "paper").map(([name, score]) => [name, score]);
      const listed = new Set(lwm.CURVES.flatMap(([, keys]) => keys));
      const more = told.log.keys.filter((k) => !listed.has(k) && !/^(updates|episodes|iteration)$/.test(k)).map((k) => [k, [k], LOG.test(k)]);
      const draws = [...lwm.CURVES.map((c) => [...c.slice(0, 2), c[2], grid]), ...more.map((c) => [...c, rest])];
      for (const [title, keys, log, where] of draws) {
        const lines = series(keys);
        if (!lines.length || (where === rest && !details.open)) { continue; }
        const given = { title, series: lines, log: options.log || !!log, smoothing: options.smoothing, marks: title === "Return" ? marks : [] };
        if (charts.has(title)) { charts.get(title).update(given); } else {
          charts.set(title, lwm.chart(given));
          where.append(charts.get(title).box);
        }
      }
      films.replaceChildren(told.episodes.length
        ? el("ul", {}, told.episodes.map((e) => el("li", {}, lwm.link("episode", { id, n: e.number }, "Episode " + e.number), ` (${lwm.number(Math.ceil(e.bytes / 1024))} KB)`)))
        : el("p", { class: "soft" }, "None recorded. ", el("code", {}, "lwm evaluate DIR --record 4"), " records four."));
    };
    const log = el("input", { type: "checkbox", onchange: () => { options.log = log.checked; draw(); } });
    const smooth = el("input", { type: "range", min: 0, max: .98, step: .02, value: 0, oninput: () => { options.smoothing = +smooth.value; draw(); } });
    const details = el("details", { ontoggle: () => draw() }, el("summary", {}, "More curves"), rest);
    lwm.fill(main, el("h1", {}, id), top, results,
      el("div", { class: "bar" }, el("label", {}, log, "logarithmic"), el("label", {}, "smoothing", smooth), lwm.exportButton("run", { id }),
        lwm.exported || !lwm.views.play ? null : lwm.link("play", { id }, "Play")),
      grid, details, el("h2", {}, "Settings that differ from the preset"), settings(told.settings),
      el("h2", {}, "Recorded episodes"), films,
      el("details", {}, el("summary", {}, "Machine"), el("pre", {}, JSON.stringify(told.machine, null, 1))));
    draw();
    lwm.poll(alive, async () => {
      const next = await lwm.get("run", { id, version: told.stamp });
      if (!next.same && alive()) { told = next; draw(); }
    }, 2000);
  };
})();
