"""Uses the gateway as a Python program would, through the openai package. Prints what it saw as one JSON object."""
import json
import sys

import openai

url, base, adapter = sys.argv[1:]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
messages = [{"role": "user", "content": "hello"}]
seen = {"models": [m.id for m in client.models.list().data]}
seen["model"] = client.models.retrieve(adapter).id

chat = client.chat.completions.create(model=base, messages=messages, max_tokens=5)
seen["chat"] = {"text": chat.choices[0].message.content, "tokens": chat.usage.completion_tokens, "finish": chat.choices[0].finish_reason}

chunks = list(client.chat.completions.create(model=adapter, messages=messages, max_tokens=5, stream=True, stream_options={"include_usage": True}))
seen["stream"] = {
    "text": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
    "tokens": chunks[-1].usage.completion_tokens,
    "model": chunks[0].model,
}

completion = client.completions.create(model=adapter, prompt="hello", max_tokens=5)
seen["completion"] = {"text": completion.choices[0].text, "model": completion.model}
seen["completion_stream"] = "".join(c.choices[0].text for c in client.completions.create(model=adapter, prompt="hello", max_tokens=5, stream=True))

embeddings = client.embeddings.create(model=base, input=["hello", "world"], encoding_format="float")
seen["embeddings"] = [len(e.embedding) for e in embeddings.data]

seen["response"] = client.responses.create(model=base, input="hello", max_output_tokens=5).usage.output_tokens

with client.chat.completions.create(model=base, messages=messages, max_tokens=500, stream=True) as left:
    next(iter(left))  # and leave

try:
    client.chat.completions.create(model="no-such-model", messages=messages)
except openai.NotFoundError as e:
    seen["unknown"] = {"status": e.status_code, "code": e.code, "param": e.param, "type": e.type}
try:
    client.chat.completions.create(model="", messages=messages)
except openai.BadRequestError as e:
    seen["empty"] = {"status": e.status_code, "param": e.param}
print(json.dumps(seen))
