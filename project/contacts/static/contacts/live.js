// Keeps one part of a page up to date: <div id="…" data-live="500"> is fetched anew every 500 ms
// with its page, until it comes back without the attribute. Inside, only the elements that have
// data-part and have changed are replaced, so that focus and a click that has begun survive.
(() => {
  const SLOW = 3000;
  const PATIENCE = 10000;

  async function fresh(id) {
    // An answer that never comes must not end the following for good.
    const signal = AbortSignal.timeout(PATIENCE);
    const answer = await fetch(location.href, { cache: "no-store", signal });
    if (!answer.ok) throw new Error(answer.statusText);
    const text = await answer.text();
    return new DOMParser().parseFromString(text, "text/html").getElementById(id);
  }

  function replace(old, next) {
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    old.replaceWith(next);
    if (!focused) return;
    const same = focused.id && document.getElementById(focused.id);
    (same || next.querySelector("[tabindex], a, button"))?.focus();
  }

  function update(root, next) {
    const parts = [...next.querySelectorAll("[data-part]")];
    const known = root.querySelectorAll("[data-part]");
    const isSame = known.length === parts.length && parts.every((p) => document.getElementById(p.id));
    if (!("live" in next.dataset) || !isSame) return replace(root, next);
    for (const part of parts) {
      const old = document.getElementById(part.id);
      if (old.outerHTML === part.outerHTML) continue;
      if (old.tagName === "PROGRESS") old.value = part.value; // in place, so that it can glide
      else replace(old, part);
    }
  }

  async function follow(id) {
    const root = document.getElementById(id);
    if (!root || !("live" in root.dataset)) return;
    let pause = Number(root.dataset.live);
    try {
      if (!document.hidden) update(root, await fresh(id));
    } catch {
      pause = SLOW; // the server is away: what is shown stays
    }
    setTimeout(follow, pause, id);
  }

  for (const root of document.querySelectorAll("[data-live]")) {
    setTimeout(follow, Number(root.dataset.live), root.id);
  }
})();
