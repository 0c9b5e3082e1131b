// Talking to the server. An action is sent until it is answered, always under the same key, so it is done once.

export class Refused extends Error {
  constructor(words, state) {
    super(words);
    this.state = state; // the present state, where the server sent it along
  }
}

const PAUSES = [300, 700, 1500, 3000, 5000]; // milliseconds between tries

async function call(path, options) {
  const answer = await fetch(path, options);
  let content = null;
  try {
    content = await answer.json();
  } catch {
    content = {};
  }
  if (answer.ok) return content;
  throw new Refused(content.detail || `The server answered ${answer.status}.`, content.state);
}

export const getState = () => call("api/state");
export const getVersion = () => call("api/version");
export const getMoves = () => call("api/moves");

export const getLesson = () => call("api/lesson");
export const getCopies = () => call("api/copies");
export const getHints = () => call("api/hints");
export const getNormal = (offset) => call(`api/normal?offset=${offset}`);
export const getNext = () => call("api/next?n=12");
export const getRoutes = () => call("api/openapi.json");
export const getHistory = () => call("api/history");
export const getSimilar = (region) => call(`api/regions/${region}/similar`);

export function getRegions(label, query) {
  return call(`api/classes/${label}/regions?${new URLSearchParams(query)}`);
}

export async function post(path, content) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ key: newKey(), ...content }),
  };
  for (const pause of PAUSES) {
    try {
      return await call(path, options);
    } catch (error) {
      if (error instanceof Refused) throw error;
      await new Promise((resume) => setTimeout(resume, pause));
    }
  }
  throw new Refused(
    "No answer from the server. Is `anomalyncd review` still running? " +
      "Whether this was stored will show once the page is connected again.",
  );
}

function newKey() {
  // Not randomUUID: browsers offer that on this machine and under HTTPS only.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
}
