// Four small things: the tick that refreshes live parts while somebody looks, the keyboard's place in
// them, the viewer's time zone for the server, and ticking all boxes of a list.
(() => {
  "use strict";
  const SECONDS = 3;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && !document.cookie.includes(`jobqueue_zone=${encodeURIComponent(zone)}`)) {
    document.cookie =
      `jobqueue_zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=lax`;
  }
  const tick = () => {
    // A hidden tab asks for nothing; an open dialog or a selection of text is left in peace.
    if (!document.hidden && String(getSelection()) === "") {
      document.body.dispatchEvent(new Event("jq-tick"));
    }
  };
  setInterval(tick, SECONDS * 1000);
  document.addEventListener("visibilitychange", tick);
  // What has an id keeps the focus by itself; a link or a fold gets it back by what it leads to.
  let place = "";
  document.addEventListener("htmx:beforeSwap", () => {
    const held = document.activeElement;
    place = "";
    if (!held || held.id || !held.closest("#jq-live")) return;
    if (held.matches("a[href]")) place = `a[href="${CSS.escape(held.getAttribute("href"))}"]`;
    if (held.matches("details[id] > summary")) {
      place = `#${CSS.escape(held.parentElement.id)} > summary`;
    }
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (place) document.querySelector(`#jq-live ${place}`)?.focus({ preventScroll: true });
    place = "";
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-jq-all]")) return;
    for (const box of document.querySelectorAll('.jq input[name="job"]')) {
      box.checked = event.target.checked;
    }
  });
})();
