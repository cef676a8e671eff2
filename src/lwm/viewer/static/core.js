/* What every view needs: answers, addresses, elements, numbers.  No text becomes markup. */
"use strict";
const lwm = { views: {} };

lwm.exported = (() => {
  const found = document.getElementById("exported");
  return found ? JSON.parse(found.textContent) : null;
})();

lwm.address = (what, query) => {
  const parts = [];
  for (const key of Object.keys(query).sort()) {
    for (const value of [].concat(query[key])) {
      parts.push(encodeURIComponent(key) + "=" + encodeURIComponent(value));
    }
  }
  // The server's names of answers in an exported file also hide these.
  const text = parts.join("&").replace(/[!'()*]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
  return "api/" + what + "?" + text;
};

lwm.get = async (what, query) => {
  const address = lwm.address(what, query);
  if (lwm.exported) {
    if (address in lwm.exported.answers) { return lwm.exported.answers[address]; }
    throw new Error("this file holds one view only; run lwm view to see the rest");
  }
  let answer;
  try { answer = await fetch(address); } catch (error) { throw new Error("the server does not answer"); }
  const told = await answer.json().catch(() => ({ error: "the server gave no answer" }));
  if (!answer.ok) { throw new Error(told.error || "not found"); }
  return told;
};

lwm.bytes = async (what, query) => {
  const address = lwm.address(what, query);
  let data;
  if (lwm.exported) {
    data = Uint8Array.from(atob(lwm.exported.answers[address] || ""), (c) => c.charCodeAt(0));
  } else {
    const answer = await fetch(address);
    if (!answer.ok) { throw new Error("pictures could not be read"); }
    data = await answer.arrayBuffer();
  }
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

lwm.post = async (what, body) => {
  let answer;
  try {
    answer = await fetch("api/" + what, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
  } catch (error) { throw new Error("the server does not answer"); }
  const told = await answer.json().catch(() => ({ error: "the server gave no answer" }));
  if (!answer.ok) { throw new Error(told.error || "not possible"); }
  return told;
};

lwm.el = (tag, given, ...inside) => {
  const svg = ["svg", "path", "line", "rect", "circle", "text", "g", "polyline", "title"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(given || {})) {
    if (key.startsWith("on")) { made.addEventListener(key.slice(2), value); }
    else if (value === true) { made.setAttribute(key, ""); }
    else if (value !== false && value !== null && value !== undefined) { made.setAttribute(key, value); }
  }
  for (const part of inside.flat()) {
    if (part !== null && part !== undefined) { made.append(part); }
  }
  return made;
};

lwm.fill = (parent, ...inside) => {
  parent.replaceChildren(...inside.flat().filter((part) => part !== null && part !== undefined));
};

lwm.number = (value, digits) => {
  if (value === null || value === undefined || !isFinite(value)) { return "–"; }
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e15) { text = size.toLocaleString("en-US"); }
  else if (size !== 0 && (size >= 1e6 || size < 1e-3)) { text = size.toExponential(2); }
  else { text = String(+size.toPrecision(digits || 4)); }
  return (value < 0 ? "−" : "") + text;
};

lwm.frames = (x) => x >= 1e6 ? +(x / 1e6).toPrecision(3) + " M" : x >= 1e3 ? +(x / 1e3).toPrecision(3) + " k"
  : String(Math.round(x));

lwm.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

lwm.save = (name, data, type) => {
  const url = URL.createObjectURL(data instanceof Blob ? data : new Blob([data], { type }));
  lwm.el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

lwm.table = (heads, rows, caption) => lwm.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
  lwm.el("table", {}, lwm.el("thead", {}, lwm.el("tr", {}, heads.map((head) =>
    lwm.el("th", { scope: "col", class: head.num ? "num" : null }, head.text)))),
  lwm.el("tbody", {}, rows.map((row) => lwm.el("tr", {}, row.map((cell, k) =>
    lwm.el("td", { class: [heads[k].num ? "num" : "", heads[k].wrap ? "wrap" : ""].join(" ").trim() || null }, cell)))))));

lwm.link = (view, query, text) => lwm.el("a", { href: lwm.hash(view, query) }, text);
lwm.hash = (view, query) => "#/" + view + lwm.address("", query).slice(4);

lwm.problem = (text) => {
  const box = document.getElementById("problem");
  box.textContent = text || "";
  box.hidden = !text;
};

/* Ask again and again while the page is looked at; stops when the view changes. */
lwm.poll = (alive, ask, wait) => {
  if (lwm.exported) { return; }
  const again = async () => {
    if (!alive()) { return; }
    if (!document.hidden) {
      try { await ask(); if (alive()) { lwm.problem(""); } }
      catch (error) { if (alive()) { lwm.problem(error.message); } }
    }
    setTimeout(again, wait);
  };
  setTimeout(again, wait);
};

lwm.exportButton = (view, query) => lwm.exported ? null : lwm.el("button", {
  type: "button", onclick: () => {
    const address = lwm.address("export", { ...query, view, hash: location.hash });
    lwm.el("a", { href: address, download: "" }).click();
  },
}, "Export HTML");

lwm.theme = () => {
  const root = document.documentElement, button = document.getElementById("theme");
  const keep = (value) => { try { localStorage.setItem("lwm-theme", value); } catch (error) { /* not kept */ } };
  let kept = null;
  try { kept = localStorage.getItem("lwm-theme"); } catch (error) { /* as the system says */ }
  if (kept) { root.dataset.theme = kept; }
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    keep(root.dataset.theme); name(); window.dispatchEvent(new Event("lwm-theme"));
  });
  name();
};
