// Questions to the server, and the address: everything that is shown can be shared as a link.

// The answer came when something else was wanted already.
export class Stale extends Error {}

export async function ask(what, words = {}) {
  const wanted = location.search;
  const response = await fetch(`/api/${what}?${new URLSearchParams(words)}`).catch(() => {
    throw new Error("The server does not answer: it was stopped, or this machine is cut off from it.");
  });
  const answer = await response.json();
  if (location.search !== wanted) throw new Stale();
  if (!response.ok) throw new Error(answer.error ?? response.statusText);
  return answer;
}

export function address() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

// The address with some words changed; an empty one is left out.
export function link(words) {
  const kept = Object.entries(words).filter(([, value]) => value !== "" && value != null);
  return `?${new URLSearchParams(kept)}`;
}

export function go(words, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", link(words));
  dispatchEvent(new Event("moved"));
}
