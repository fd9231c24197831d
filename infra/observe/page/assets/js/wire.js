// Questions to the server, and the address: everything that is shown can be shared as a link.

export async function ask(what, words = {}) {
  const response = await fetch(`/api/${what}?${new URLSearchParams(words)}`);
  const answer = await response.json();
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
