// The protocol of remote agents for Node.js, without packages: see docs/remote-agents.md.
//
//   serve({ structure, run: async (run) => `...`, port: 8080 });
//
// `run.values` has the values of the surfaces, `run.ask` calls a model where promptiter says, and `run.addStep` records
// what happened.
import { createServer } from "node:http";

export function serve({ structure, run: answer, port }) {
  const surfaces = structure.surfaces.map((each) => `${each.node_id}#${each.type}${each.part ? `.${each.part}` : ""}`);
  const server = createServer(async (request, response) => {
    const [status, document] = await handle(request).catch((error) => [500, { error: { message: `${error.stack}` } }]);
    response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(document));
  });

  async function handle(request) {
    const path = `${request.method} ${request.url}`;
    if (path === "GET /structure") return [200, { protocol: 1, structure }];
    if (path !== "POST /runs") return [404, { error: { message: `${path} is not served` } }];
    const sent = await readJson(request);
    const names = Object.keys(sent.values);
    if (names.length !== surfaces.length || surfaces.some((each) => !(each in sent.values))) {
      return [409, { error: { message: `this agent has the surfaces ${surfaces.join(", ")}` } }];
    }
    return [200, { run: await runOnce(new Run(sent), answer) }];
  }

  server.listen(port, "127.0.0.1", () => console.log(`Serving on http://127.0.0.1:${server.address().port}`));
}

async function runOnce(run, answer) {
  const trace = () => (run.steps.length ? { trace: { steps: run.steps } } : {});
  try {
    return { output: await answer(run), ...trace() };
  } catch (error) {
    return { error: { type: error.name, message: error.message, is_outage: error.isOutage ?? false }, ...trace() };
  }
}

class Run {
  constructor(sent) {
    this.values = sent.values;
    this.input = sent.input;
    this.models = sent.models;
    this.steps = [];
  }

  // Ask a model for its message: at the address of the request, or else at your own.
  async ask(node, body) {
    const base = this.models?.base_url ?? process.env.OPENAI_BASE_URL ?? "https://api.openai.com/v1";
    const key = this.models?.api_key ?? process.env.OPENAI_API_KEY;
    const answer = await fetch(`${base}/chat/completions`, {
      method: "POST",
      headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json", "X-Promptiter-Node": node },
      body: JSON.stringify(body),
    });
    if (!answer.ok) {
      const error = new Error(`${answer.status}: ${await answer.text()}`);
      error.isOutage = answer.status === 429 || answer.status >= 500;
      throw error;
    }
    return (await answer.json()).choices[0].message;
  }

  // Record a step: `after` are the steps whose outputs it used, `reads` the surfaces that it read.
  addStep(node, { input, output, after = [], reads = [], toolCalls = [] }) {
    this.steps.push({
      step_id: node,
      node_id: node,
      kind: "llm",
      predecessor_step_ids: after,
      surface_reads: reads,
      input: { text: input },
      output: { text: output },
      tool_calls: toolCalls,
    });
    return output;
  }
}

async function readJson(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return JSON.parse(Buffer.concat(parts).toString("utf8"));
}
