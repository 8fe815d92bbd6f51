"""Downloads repositories with huggingface_hub. Its argument is a JSON list of the arguments of snapshot_download; it prints a
JSON list with the names of the exceptions, null for a success."""
import json
import sys

from huggingface_hub import snapshot_download

results = []
for arguments in json.loads(sys.argv[1]):
    try:
        snapshot_download(**arguments)
        results.append(None)
    except Exception as e:
        cause = e.__cause__
        results.append(type(cause if type(e).__name__ == "LocalEntryNotFoundError" and cause else e).__name__)
print(json.dumps(results))
