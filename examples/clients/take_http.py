import json, sys, urllib.error, urllib.request

for _ in range(3):
    body = json.dumps({"limit": "login", "key": "python:7", "cost": 1}).encode()
    request = urllib.request.Request(sys.argv[1] + "/v1/take", body, {"Content-Type": "application/json"})
    try:
        answer = json.load(urllib.request.urlopen(request, timeout=5))
    except urllib.error.HTTPError as error:
        if error.code != 429:  # 503: the store cannot decide
            raise
        answer = json.load(error)
    print(f"allowed, {answer['remaining']} left" if answer["allowed"] else f"refused, again in {answer['retry_after_us'] / 1e6:.0f} s")
