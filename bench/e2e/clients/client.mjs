// Uses the gateway as a Node program would, through the openai package. Prints what it saw as one JSON object.
import { createRequire } from "node:module";

const [modules, url, base, adapter] = process.argv.slice(2);
const OpenAI = createRequire(modules + "/")("openai").OpenAI;
const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "hello" }];
const seen = { models: (await client.models.list()).data.map((m) => m.id) };
seen.model = (await client.models.retrieve(adapter)).id;

const chat = await client.chat.completions.create({ model: base, messages, max_tokens: 5 });
seen.chat = { text: chat.choices[0].message.content, tokens: chat.usage.completion_tokens, finish: chat.choices[0].finish_reason };

seen.stream = { text: "" };
for await (const c of await client.chat.completions.create({ model: adapter, messages, max_tokens: 5, stream: true, stream_options: { include_usage: true } })) {
  seen.stream.text += c.choices[0]?.delta.content ?? "";
  seen.stream.tokens = c.usage?.completion_tokens;
  seen.stream.model = c.model;
}

const completion = await client.completions.create({ model: adapter, prompt: "hello", max_tokens: 5 });
seen.completion = { text: completion.choices[0].text, model: completion.model };
seen.completion_stream = "";
for await (const c of await client.completions.create({ model: adapter, prompt: "hello", max_tokens: 5, stream: true })) {
  seen.completion_stream += c.choices[0].text;
}

const embeddings = await client.embeddings.create({ model: base, input: ["hello", "world"], encoding_format: "float" });
seen.embeddings = embeddings.data.map((e) => e.embedding.length);

seen.response = (await client.responses.create({ model: base, input: "hello", max_output_tokens: 5 })).usage.output_tokens;

for await (const _ of await client.chat.completions.create({ model: base, messages, max_tokens: 500, stream: true })) break; // and leave

const fault = async (model) => {
  try {
    await client.chat.completions.create({ model, messages });
  } catch (e) {
    return { status: e.status, code: e.code, param: e.param, type: e.type };
  }
};
seen.unknown = await fault("no-such-model");
const { status, param } = await fault("");
seen.empty = { status, param };
console.log(JSON.stringify(seen));
