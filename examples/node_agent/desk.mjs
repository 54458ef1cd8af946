// A support desk in JavaScript: reception sums up what a customer writes, filing makes it an entry of the ticket system.
//
// The ticket system has a new field, the purchase date, which neither of the two instructions asks for.
//
//   node desk.mjs 8080
import { serve } from "./protocol.mjs";

const MODEL = "simulated"; // for a real model, its name, such as "gpt-4o-mini"
const INSTRUCTIONS = {
  reception:
    "You are the reception of a shop's support desk. Pass on the order id, the product, the amount, the city and the " +
    "wish exactly as given.",
  filing:
    "You file cases in the ticket system of a shop. Reply only with a JSON object with the keys order id, product, " +
    "amount, city and wish.",
};

const structure = {
  name: "desk",
  nodes: [
    { id: "reception", kind: "llm" },
    { id: "filing", kind: "llm" },
  ],
  edges: [{ source: "reception", target: "filing" }],
  entry: "reception",
  surfaces: Object.entries(INSTRUCTIONS).map(([node_id, value]) => ({ node_id, type: "instruction", value })),
};

async function answer(run) {
  const note = await work(run, "reception", run.input.text, []);
  return work(run, "filing", note, ["reception"]);
}

async function work(run, node, input, after) {
  const surface = `${node}#instruction`;
  const messages = [
    { role: "system", content: run.values[surface] },
    { role: "user", content: input },
  ];
  const { content } = await run.ask(node, { model: MODEL, messages });
  return run.addStep(node, { input, output: content, after, reads: [surface] });
}

serve({ structure, run: answer, port: Number(process.argv[2] ?? 8080) });
