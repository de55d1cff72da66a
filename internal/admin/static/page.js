// A little comfort; everything works without it.
"use strict";
(() => {
  // Live views renew themselves, but never under somebody's hands.
  const main = document.querySelector("main[data-live]");
  let failures = 0;
  const busy = () => document.hidden || main.querySelector("details[open]") ||
    (main.contains(document.activeElement) && document.activeElement !== main) || String(getSelection()) !== "";
  const renew = async () => {
    if (!busy()) {
      try {
        const res = await fetch(location.pathname + location.search.replace(/([?&])done=[a-z]*/, "$1"), { credentials: "same-origin" });
        if (!res.ok || res.redirected) { location.reload(); return; }
        const doc = new DOMParser().parseFromString(await res.text(), "text/html");
        const fresh = doc.querySelector("main");
        if (!busy()) {
          main.replaceChildren(...fresh.childNodes);
          for (const part of ["nav", "footer"]) {
            const from = doc.querySelector(part), to = document.querySelector(part);
            if (from && to && !to.contains(document.activeElement)) to.replaceChildren(...from.childNodes);
          }
          localTimes();
        }
        document.body.classList.remove("stale");
        failures = 0;
        if (!fresh.hasAttribute("data-live")) return;
      } catch {
        failures++;
        document.body.classList.add("stale");
      }
    }
    setTimeout(renew, Math.min(5000 * 2 ** failures, 60000));
  };
  // The viewer's own time, on pointing at a time.
  const localTimes = () => {
    for (const t of document.querySelectorAll("time[datetime]")) t.title = new Date(t.dateTime).toLocaleString();
  };
  localTimes();
  if (main) setTimeout(renew, 5000);
  // One press, one deed.
  document.addEventListener("submit", (e) => {
    if (e.target.method !== "post") return;
    if (e.target.dataset.sent) { e.preventDefault(); return; }
    e.target.dataset.sent = "1";
  });
  addEventListener("pageshow", (e) => {
    if (e.persisted) for (const f of document.forms) delete f.dataset.sent;
  });
})();
