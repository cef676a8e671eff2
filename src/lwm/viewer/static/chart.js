/* Curves as SVG: bands, log or linear, smoothing, values under the pointer or the arrow keys, and
   export as SVG, PNG and CSV. */
"use strict";
(() => {
  const L = 58, R = 12, T = 10, B = 26;

  /* Exponential moving average that does not lean to its first value. */
  lwm.smooth = (y, share) => {
    if (!share) { return y; }
    let mean = 0, weight = 0;
    return y.map((v) => {
      if (v === null) { return null; }
      mean = share * mean + (1 - share) * v; weight = share * weight + (1 - share);
      return mean / weight;
    });
  };

  const ticks = (low, high) => {
    const span = (high - low) || Math.abs(high) || 1;
    let step = 10 ** Math.floor(Math.log10(span / 4));
    step *= [1, 2, 5, 10].find((m) => span / (m * step) <= 6) || 10;
    const made = [];
    for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) { made.push(+(k * step).toPrecision(12)); }
    return made;
  };

  const logTicks = (low, high) => {
    const made = [], parts = high / low < 30 ? [1, 2, 3, 5] : high / low < 3000 ? [1, 2, 5] : [1];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const m of parts) { const v = m * 10 ** e; if (v >= low * .999 && v <= high * 1.001) { made.push(v); } }
    }
    if (made.length > 8) { return made.filter((v, k) => k % Math.ceil(made.length / 8) === 0); }
    return made.length > 1 ? made : [low, high];
  };

  /* given: {title, series: [{name, x, y, low, high, colour}], log, marks: [[name, value]]} */
  lwm.chart = (given) => {
    const [W, H] = given.wide && innerWidth > 700 ? [1060, 400] : [520, 220];
    const box = lwm.el("div", { class: "chart" });
    const told = lwm.el("output", {});
    let svg = null, at = null, series = [];
    const head = lwm.el("h3", {}, given.title);
    const update = (next) => {
      given = { ...given, ...next };
      head.textContent = given.title;
      draw();
    };
    function draw() {
      series = given.series.filter((s) => s.x.length).map((s) => ({ ...s, y: lwm.smooth(s.y, given.smoothing || 0) }));
      const values = [];
      for (const s of series) {
        for (const part of given.narrow ? [s.y] : [s.y, s.low, s.high]) { if (part) { for (const v of part) { if (v !== null) { values.push(v); } } } }
      }
      for (const [, v] of given.marks || []) { values.push(v); }
      /* Scores below 0 are drawn on a logarithmic axis of -score. */
      let low = Infinity, high = -Infinity;
      for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
      const negative = given.log && high < 0;
      const log = given.log && (negative || low > 0 || values.some((v) => v > 0));
      if (log && !negative && low <= 0) { low = Infinity; for (const v of values) { if (v > 0) { low = Math.min(low, v); } } }
      const f = !log ? (v) => v : negative ? (v) => -Math.log10(Math.max(-v, -high)) : (v) => (v > 0 ? Math.log10(v) : Math.log10(low));
      let far = 0, near = Infinity;
      for (const s of series) { far = Math.max(far, s.x[s.x.length - 1]); near = Math.min(near, s.x[0]); }
      if (!isFinite(low)) { low = 0; high = 1; }
      near = near > far / 2 ? near : 0;
      let bottom = f(low), top = f(high);
      const space = (top - bottom) || Math.abs(top) || 1;
      bottom -= space * .04; top += space * .04;
      const X = (x) => L + (x - near) / ((far - near) || 1) * (W - L - R);
      const Y = (y) => T + (1 - Math.max(0, Math.min(1, (f(y) - bottom) / (top - bottom)))) * (H - T - B);
      const made = lwm.el("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: "0",
        "aria-label": given.title + (series.length ? ": arrow keys read values" : ": no values yet") });
      const marksAt = !log ? ticks(low, high) : negative ? logTicks(-high, -low).map((v) => -v) : logTicks(low, high);
      for (const tick of marksAt) {
        made.append(lwm.el("line", { x1: L, x2: W - R, y1: Y(tick), y2: Y(tick), stroke: "var(--line)" }),
          lwm.el("text", { x: L - 6, y: Y(tick) + 4, "text-anchor": "end" }, lwm.number(tick, 3)));
      }
      for (const tick of ticks(near, far || 1)) {
        made.append(lwm.el("text", { x: X(tick), y: H - 8, "text-anchor": "middle" }, lwm.frames(tick)));
      }
      (given.marks || []).forEach(([name, value]) => made.append(
        lwm.el("line", { x1: L, x2: W - R, y1: Y(value), y2: Y(value), stroke: "var(--soft)", "stroke-dasharray": "5 3" }),
        lwm.el("text", { x: W - R, y: Y(value) - 3, "text-anchor": "end" }, name)));
      for (const s of series) {
        if (s.low && s.high && given.bands !== false) {
          const up = [], down = [];
          s.x.forEach((x, k) => { if (s.low[k] !== null && s.high[k] !== null) {
            up.push(X(x).toFixed(1) + "," + Y(s.high[k]).toFixed(1)); down.unshift(X(x).toFixed(1) + "," + Y(s.low[k]).toFixed(1)); } });
          if (up.length) {
            made.append(lwm.el("path", { d: "M" + up.concat(down).join("L") + "Z", fill: `var(--${s.colour})`, "fill-opacity": ".16" }));
          }
        }
        let path = "", pen = "M";
        s.x.forEach((x, k) => {
          if (s.y[k] === null) { pen = "M"; return; }
          path += pen + X(x).toFixed(1) + "," + Y(s.y[k]).toFixed(1); pen = "L";
        });
        if (s.x.length === 1) { made.append(lwm.el("circle", { cx: X(s.x[0]), cy: Y(s.y[0]), r: 3, fill: `var(--${s.colour})` })); }
        made.append(lwm.el("path", { d: path || "M0,0", fill: "none", stroke: `var(--${s.colour})`, "stroke-width": s.thin ? ".7" : "1.6",
          "stroke-opacity": s.thin ? ".6" : "1", "stroke-linejoin": "round" }));
      }
      if (!series.length) { made.append(lwm.el("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "no values yet")); }
      const cross = lwm.el("line", { y1: T, y2: H - B, stroke: "var(--soft)", visibility: "hidden" });
      const dots = series.map((s) => lwm.el("circle", { r: 3, fill: `var(--${s.colour})`, visibility: "hidden" }));
      made.append(cross, ...dots);
      const point = (x) => {
        if (!series.length) { return; }
        at = Math.min(far, Math.max(near, x));
        cross.setAttribute("visibility", "visible");
        const parts = [];
        let shown = at;
        series.forEach((s, k) => {
          let best = 0;
          for (let lo = 0, hi = s.x.length - 1; lo <= hi;) {
            const mid = (lo + hi) >> 1; best = mid;
            if (s.x[mid] < at) { lo = mid + 1; } else { hi = mid - 1; }
          }
          for (const near2 of [best - 1, best + 1]) {
            if (near2 >= 0 && near2 < s.x.length && Math.abs(s.x[near2] - at) < Math.abs(s.x[best] - at)) { best = near2; }
          }
          if (s.y[best] === null) { dots[k].setAttribute("visibility", "hidden"); return; }
          if (k === 0) { shown = s.x[best]; }
          dots[k].setAttribute("cx", X(s.x[best])); dots[k].setAttribute("cy", Y(s.y[best]));
          dots[k].setAttribute("visibility", "visible");
          if (parts.length < 8) { parts.push((series.length > 1 && !s.thin ? s.name + " " : "") + lwm.number(s.y[best])); }
        });
        cross.setAttribute("x1", X(shown)); cross.setAttribute("x2", X(shown));
        told.textContent = lwm.frames(shown) + ": " + parts.join(", ");
      };
      const hide = () => { at = null; told.textContent = ""; [cross, ...dots].forEach((e) => e.setAttribute("visibility", "hidden")); };
      made.addEventListener("pointermove", (event) => {
        const place = made.getBoundingClientRect();
        point(near + ((event.clientX - place.left) / place.width * W - L) / (W - L - R) * (far - near));
      });
      made.addEventListener("pointerleave", hide);
      made.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) { return; }
        event.preventDefault();
        point((at === null ? far : at) + step * (far - near) / 100);
      });
      made.addEventListener("blur", hide);
      const focused = svg && document.activeElement === svg, was = at;
      if (svg) { svg.replaceWith(made); } else { box.append(made); }
      svg = made;
      if (focused) { svg.focus(); }
      if (was !== null) { point(was); }
    }
    const named = () => "lwm-" + given.title.replace(/[^A-Za-z0-9]+/g, "-").toLowerCase();
    /* The picture on its own: colours as they are now, a ground behind it. */
    const alone = () => {
      const copy = svg.cloneNode(true);
      copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
      copy.setAttribute("width", W); copy.setAttribute("height", H);
      copy.prepend(lwm.el("title", {}, given.title), lwm.el("rect", { width: W, height: H, fill: lwm.colour("ground") }));
      let text = new XMLSerializer().serializeToString(copy);
      text = text.replace(/var\(--(\w+)\)/g, (_, name) => lwm.colour(name));
      return text.replace("<svg ", `<svg font-family="sans-serif" font-size="11" fill="${lwm.colour("soft")}" `);
    };
    const png = () => {
      const image = new Image();
      image.onload = () => {
        const canvas = lwm.el("canvas", { width: W * 2, height: H * 2 });
        canvas.getContext("2d").drawImage(image, 0, 0, W * 2, H * 2);
        canvas.toBlob((blob) => lwm.save(named() + ".png", blob));
      };
      image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(alone());
    };
    const csv = () => {
      const quote = (text) => /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
      const lines = ["name,frames,value,low,high"];
      for (const s of series) {
        s.x.forEach((x, k) => { if (s.y[k] !== null) {
          lines.push([quote(s.name), x, s.y[k], s.low ? s.low[k] : "", s.high ? s.high[k] : ""].join()); } });
      }
      return lines.join("\n") + "\n";
    };
    const button = (text, call) => lwm.el("button", { type: "button", onclick: call, "aria-label": `${text} of ${given.title}` }, text);
    box.append(head);
    draw();
    box.append(lwm.el("div", { class: "foot" }, told, lwm.el("span", { class: "tools" },
      button("SVG", () => lwm.save(named() + ".svg", alone(), "image/svg+xml")), button("PNG", png),
      button("CSV", () => lwm.save(named() + ".csv", csv(), "text/csv")))));
    return { box, update, svg: alone, csv };
  };
})();
