/* Which view an address asks for. */
"use strict";
(() => {
  let turn = 0;
  const show = async () => {
    const mine = ++turn;
    const hash = lwm.exported && !location.hash ? lwm.exported.hash : location.hash;
    const [path, search] = hash.replace(/^#\/?/, "").split("?");
    if (path === "main") { return; }
    const query = {};
    for (const [key, value] of new URLSearchParams(search || "")) { (query[key] = query[key] || []).push(value); }
    const main = document.getElementById("main"), trail = document.getElementById("trail");
    const view = lwm.views[path || "runs"];
    lwm.problem("");
    trail.textContent = "";
    const alive = () => mine === turn;
    lwm.alive = alive;
    try {
      if (!view) { throw new Error("there is no such page"); }
      main.replaceChildren(lwm.el("p", { class: "soft" }, "Loading …"));
      await view({ main, query, alive, trail: (...parts) => trail.replaceChildren(...parts.flatMap((p) => [" › ", p])) });
    } catch (error) {
      if (!alive()) { return; }
      lwm.problem(error.message);
      main.replaceChildren(lwm.el("p", {}, "This could not be shown. ", lwm.link("", {}, "All runs")));
    }
  };
  lwm.theme();
  window.addEventListener("hashchange", () => { show(); document.getElementById("main").focus(); });
  show();
})();
