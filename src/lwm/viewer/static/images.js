/* An episode of pictures: frames, the timeline of reward and bonus, the latent trajectory.
   What stands still is drawn once; a step draws a frame, two lines and a dot. */
"use strict";
(() => {
  const el = lwm.el;

  /* A canvas that is drawn once, and a mark above it that only moves: a step repaints nothing. */
  const canvas = (kind, label) => {
    const back = el("canvas", { class: kind, role: "img", "aria-label": label }), mark = el("i", { class: "mark " + kind });
    const box = el("div", { class: "over " + kind }, back, mark);
    const size = () => {
      const scale = Math.min(2, window.devicePixelRatio || 1), place = back.getBoundingClientRect();
      back.width = Math.max(1, Math.round(place.width * scale));
      back.height = Math.max(1, Math.round(place.height * scale));
      return scale;
    };
    return { back, box, mark, size };
  };

  /* Reward and bonus over the whole episode; data.ends are marked. */
  lwm.timeline = (data, seek) => {
    const view = canvas("line", "bonus and reward over the episode"), rows = data.rows;
    let scale = 1, now = 0, width = 1;
    const range = (values) => {
      let low = 0, high = 0;
      for (const v of values) { if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); } }
      return [low, high === low ? low + 1 : high];
    };
    const bonus = range(data.bonus), reward = range(data.reward);
    const X = (t) => (t + .5) / rows * width;
    const paint = () => {
      scale = view.size(); width = view.back.width;
      const pen = view.back.getContext("2d"), h = view.back.height, half = h * .62;
      pen.clearRect(0, 0, width, h);
      pen.fillStyle = lwm.colour("bad");
      for (const t of data.ends) { pen.globalAlpha = .5; pen.fillRect(X(t) - scale / 2, 0, Math.max(1, scale), h); }
      pen.globalAlpha = 1;
      const columns = Math.min(width, rows), wide = width / columns;
      const strip = (values, [low, high], top, bottom, colour, other) => {
        const Y = (v) => bottom - (v - low) / (high - low) * (bottom - top);
        const zero = Y(0);
        const up = lwm.colour(colour), below = lwm.colour(other);
        for (let c = 0; c < columns; c++) {
          const from = Math.floor(c * rows / columns), to = Math.max(from + 1, Math.floor((c + 1) * rows / columns));
          let least = 0, most = 0;
          for (let t = from; t < to; t++) { const v = values[t] || 0; if (v < least) { least = v; } if (v > most) { most = v; } }
          if (most > 0) { pen.fillStyle = up; pen.fillRect(c * wide, Y(most), Math.max(1, wide * .9), zero - Y(most)); }
          if (least < 0) { pen.fillStyle = below; pen.fillRect(c * wide, zero, Math.max(1, wide * .9), Y(least) - zero); }
        }
        pen.fillStyle = lwm.colour("line"); pen.fillRect(0, zero - scale / 2, width, scale);
      };
      strip(data.bonus, bonus, 16 * scale, half, "heat", "cold");
      strip(data.reward, reward, half + 18 * scale, h - 4 * scale, "c2", "c3");
      pen.fillStyle = lwm.colour("soft"); pen.font = `${11 * scale}px system-ui, sans-serif`;
      pen.fillText(`bonus ${lwm.number(bonus[0], 3)} to ${lwm.number(bonus[1], 3)}`, 4 * scale, 12 * scale);
      pen.fillText(`reward ${lwm.number(reward[0], 3)} to ${lwm.number(reward[1], 3)}`, 4 * scale, half + 14 * scale);
      show(now);
    };
    const show = (t) => {
      now = t;
      view.mark.style.transform = `translateX(${(X(t) / scale).toFixed(1)}px)`;
    };
    view.back.addEventListener("pointermove", (event) => {
      const place = view.back.getBoundingClientRect();
      seek(Math.floor((event.clientX - place.left) / place.width * rows));
    });
    return { box: view.box, show, resize: paint };
  };

  /* points: [[x, y]] within [-1, 1], coloured from early to late. */
  lwm.plane = (points, ends, seek) => {
    const view = canvas("plane", "latent trajectory, two dimensions");
    let scale = 1, now = 0, size = 1;
    const X = (p) => (p[0] * .94 + 1) / 2 * size, Y = (p) => (1 - p[1] * .94) / 2 * size;
    const hue = (t) => `hsl(${220 + 170 * t / Math.max(1, points.length - 1)} 70% 50%)`;
    const paint = () => {
      scale = view.size(); size = view.back.width;
      const pen = view.back.getContext("2d"), cut = new Set(ends), r = (points.length > 3000 ? 1 : 1.6) * scale;
      pen.clearRect(0, 0, size, size);
      pen.strokeStyle = lwm.colour("soft"); pen.globalAlpha = .25; pen.lineWidth = scale * .6;
      pen.beginPath();
      points.forEach((p, t) => { if (t && !cut.has(t - 1)) { pen.lineTo(X(p), Y(p)); } else { pen.moveTo(X(p), Y(p)); } });
      pen.stroke(); pen.globalAlpha = .8;
      points.forEach((p, t) => { pen.fillStyle = hue(t); pen.fillRect(X(p) - r, Y(p) - r, 2 * r, 2 * r); });
      pen.globalAlpha = 1;
      show(now);
    };
    const show = (t) => {
      now = t;
      const p = points[t];
      if (p) { view.mark.style.transform = `translate(${(X(p) / scale).toFixed(1)}px, ${(Y(p) / scale).toFixed(1)}px)`; }
    };
    view.back.addEventListener("pointermove", (event) => {
      if (!seek) { return; }
      const place = view.back.getBoundingClientRect();
      const x = (event.clientX - place.left) / place.width * size, y = (event.clientY - place.top) / place.height * size;
      let best = -1, least = (30 * scale) ** 2;
      for (let t = 0; t < points.length; t++) {
        const d = (X(points[t]) - x) ** 2 + (Y(points[t]) - y) ** 2;
        if (d < least) { least = d; best = t; }
      }
      if (best >= 0) { seek(best); }
    });
    return { box: view.box, show, resize: paint };
  };

  /* A grey or colour picture onto a canvas. */
  lwm.painter = (made, width, height, channels) => {
    made.width = width; made.height = height;
    const pen = made.getContext("2d"), image = pen.createImageData(width, height);
    const out = new Uint32Array(image.data.buffer), grey = new Uint32Array(256);
    for (let v = 0; v < 256; v++) { grey[v] = 0xff000000 | v << 16 | v << 8 | v; }
    return (data, from) => {
      const n = width * height;
      if (channels === 1) { for (let i = 0; i < n; i++) { out[i] = grey[data[from + i]]; } }
      else { for (let i = 0, k = from; i < n; i++, k += 3) { out[i] = 0xff000000 | data[k + 2] << 16 | data[k + 1] << 8 | data[k]; } }
      pen.putImageData(image, 0, 0);
    };
  };

  lwm.imagesPlayer = (data, seek, ask, alive) => {
    const frame = el("canvas", { class: "film", role: "img", "aria-label": "what the agent saw; moving over it scrubs" });
    const paint = lwm.painter(frame, data.width, data.height, data.channels);
    const bytes = data.width * data.height * data.channels, chunks = Math.ceil(data.rows / data.chunk);
    const held = new Array(chunks).fill(null), facts = el("p", {}), loaded = el("p", { class: "soft small" });
    let now = 0, busy = 0, have = 0, failed = false;
    const draw = () => {
      const c = Math.floor(now / data.chunk);
      if (held[c] instanceof Uint8Array) { paint(held[c], (now - c * data.chunk) * bytes); frame.dataset.step = now; }
    };
    /* The chunk looked at first, then its neighbours, until all are here. */
    const fetchMore = async () => {
      while (busy < 2 && !failed && alive()) {
        const centre = Math.floor(now / data.chunk);
        let next = -1;
        for (let d = 0; d < chunks && next < 0; d++) {
          if (centre + d < chunks && held[centre + d] === null) { next = centre + d; }
          else if (centre - d >= 0 && held[centre - d] === null) { next = centre - d; }
        }
        if (next < 0) { return; }
        held[next] = "asked"; busy++;
        ask(next).then((got) => {
          held[next] = got; have++;
          loaded.textContent = have < chunks ? `${Math.floor(100 * have / chunks)} % of the pictures are here` : "";
          if (Math.floor(now / data.chunk) === next) { draw(); }
        }).catch((error) => { failed = true; if (alive()) { lwm.problem(error.message); } }).finally(() => { busy--; fetchMore(); });
      }
    };
    const line = lwm.timeline(data, seek), plane = data.latent ? lwm.plane(data.latent, data.ends, seek) : null;
    frame.addEventListener("pointermove", (event) => {
      const place = frame.getBoundingClientRect();
      seek(Math.floor((event.clientX - place.left) / place.width * data.rows));
    });
    const total = []; data.reward.reduce((sum, r, t) => (total[t] = sum + r), 0);
    const box = el("div", {}, el("div", { class: "player" }, el("div", {}, frame, facts, loaded),
      plane ? el("div", {}, plane.box, el("p", { class: "soft small" }, "Embedding z of every step in its two directions of greatest variance; early blue, late orange.")) : null),
    el("h3", {}, "Bonus and reward", data.ends.length ? `; ${data.ends.length} lives lost (red)` : ""), line.box);
    return {
      box,
      resize: () => { line.resize(); if (plane) { plane.resize(); } },
      show: (t) => {
        now = t;
        draw(); line.show(t); if (plane) { plane.show(t); }
        facts.textContent = `action ${data.action[t]}, reward ${lwm.number(data.reward[t], 3)}, bonus ${lwm.number(data.bonus[t], 3)}, return ${lwm.number(total[t], 4)}`
          + (data.error ? `, prediction error ${lwm.number(data.error[t], 2)}` : "");
        if (!(held[Math.floor(t / data.chunk)] instanceof Uint8Array)) { fetchMore(); }
      },
      start: fetchMore,
    };
  };

  /* Neither labyrinth nor pictures: timeline and latent trajectory. */
  lwm.plainPlayer = (data, seek) => {
    const line = lwm.timeline(data, seek), plane = data.latent ? lwm.plane(data.latent, data.ends, seek) : null, facts = el("p", {});
    return {
      box: el("div", {}, facts, plane ? plane.box : null, line.box),
      resize: () => { line.resize(); if (plane) { plane.resize(); } },
      show: (t) => {
        line.show(t); if (plane) { plane.show(t); }
        facts.textContent = `action ${data.action[t]}, reward ${lwm.number(data.reward[t], 3)}, bonus ${lwm.number(data.bonus[t], 3)}`;
      },
    };
  };
})();
