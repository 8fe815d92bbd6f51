"""Asks models of one tensor for what they were given, with the clients of Triton as they are: by gRPC and by HTTP, in every way that these have.

triton_clients.py HOST GRPC_PORT HTTP_PORT MODEL...
"""

import asyncio
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

host, grpc_port, http_port, *models = sys.argv[1:]
numbers = np.array([1.5, -2.25, 3e38, 0.1], dtype=np.float32)


def tensor(module, **how):
    x = module.InferInput("x", [4], "FP32")
    x.set_data_from_numpy(numbers, **how)
    return [x]


def check(what, result, model):
    y = result.as_numpy("y")
    response = result.get_response()
    name = response["model_name"] if isinstance(response, dict) else response.model_name
    assert np.array_equal(y, numbers), f"{what} of {model}: {y}"
    assert name == model, f"{what}: {name} answers for {model}"


def by_grpc(model):
    with grpc.InferenceServerClient(f"{host}:{grpc_port}") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
        check("gRPC", client.infer(model, tensor(grpc), request_id="7"), model)
        check("gRPC with gzip", client.infer(model, tensor(grpc), compression_algorithm="gzip"), model)
        check("gRPC with a header", client.infer("", tensor(grpc), headers={"mm-model-id": model}), model)
        assert [i.name for i in client.get_model_metadata(model).inputs] == ["x"]
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(20):
            client.async_stream_infer(model, tensor(grpc))
        for _ in range(20):
            result, error = answers.get(timeout=30)
            assert error is None, error
            check("a stream", result, model)
        client.stop_stream()
        try:
            client.load_model(model)
            raise AssertionError("a client loads a model")
        except InferenceServerException as e:
            assert "UNIMPLEMENTED" in str(e.status()), e.status()


def by_http(model):
    with http.InferenceServerClient(f"{host}:{http_port}") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
        for binary in True, False:
            outputs = [http.InferRequestedOutput("y", binary_data=binary)]
            check(f"HTTP, in binary {binary}", client.infer(model, tensor(http, binary_data=binary), outputs=outputs), model)
        check("HTTP with gzip", client.infer(model, tensor(http), request_compression_algorithm="gzip", response_compression_algorithm="gzip"), model)
        assert client.get_model_metadata(model)["inputs"][0]["name"] == "x"


async def by_aio(model):
    async with grpc_aio.InferenceServerClient(f"{host}:{grpc_port}") as client:
        for result in await asyncio.gather(*(client.infer(model, tensor(grpc)) for _ in range(20))):
            check("asyncio", result, model)


for model in models:
    by_grpc(model)
    by_http(model)
    asyncio.run(by_aio(model))
print(f"{len(models)} models are served")
