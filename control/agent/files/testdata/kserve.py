"""Downloads sources with KServe's storage initializer. Its argument is a JSON list of [URI, folder]; it prints a JSON list with
null for each success, and the error's type for each failure."""
import json
import sys

from kserve_storage import Storage

results = []
for uri, folder in json.loads(sys.argv[1]):
    try:
        Storage.download(uri, folder)
        results.append(None)
    except BaseException as e:
        print(uri, repr(e), file=sys.stderr)
        results.append(type(e).__name__)
print("\n" + json.dumps(results))
