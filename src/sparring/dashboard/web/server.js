// One server, spoken to in JSON: its errors become sentences that a page can show.

/** Says what was wrong, where and what to do. `status` 0: no answer came; `results` where an upload has them. */
export class SparringError extends Error {
  constructor(wrong, { where = "", doThis = "", status = 0, code = "", field = "", results = null } = {}) {
    super([where && `${where}: `, wrong, ".", doThis && ` ${doThis}.`].join("").replace(/\.\.+/g, "."));
    Object.assign(this, { name: "SparringError", wrong, where, doThis, status, code, field, results });
  }

  /** Whether the same call may succeed later. */
  get passing() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/** Calls to one base address with one token. */
export class Server {
  constructor(url = "", token = null, timeoutMs = 15_000) {
    Object.assign(this, { url: url.replace(/\/$/, ""), token, timeoutMs });
  }

  async get(path) {
    return (await this.ask(path)).json();
  }

  async bytes(path) {
    return new Uint8Array(await (await this.ask(path)).arrayBuffer());
  }

  async post(path, value, extra = {}) {
    const headers = { "Content-Type": "application/json" };
    return (await this.ask(path, { method: "POST", body: JSON.stringify(value), headers, ...extra })).json();
  }

  /** The response, once its status says success; SparringError otherwise. */
  async ask(path, options = {}) {
    const headers = { ...options.headers, ...(this.token && { Authorization: `Bearer ${this.token}` }) };
    let response;
    try {
      const signal = AbortSignal.timeout(this.timeoutMs);
      response = await fetch(this.url + path, { cache: "no-cache", signal, ...options, headers });
    } catch (error) {
      const wrong = error.name === "TimeoutError" ? "the server took too long" : "the server does not answer";
      throw new SparringError(wrong, { doThis: "It is tried again; is `spar serve` running?" });
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

async function refusal(response) {
  const said = await response.json().catch(() => null); // a proxy's error page is not JSON
  const error = said?.error ?? {};
  return new SparringError(error.message ?? `the server answered ${response.status}`, {
    status: response.status, code: error.code ?? "", field: error.field ?? "", doThis: error.do ?? "", results: said?.results ?? null,
  });
}
