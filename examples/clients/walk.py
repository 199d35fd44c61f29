# A client generated from /openapi.json: openapi-generator makes the package
# dipwell_client.
import sys

import dipwell_client
from dipwell_client.rest import ApiException

settings = dipwell_client.Configuration(host=sys.argv[1])
settings.access_token = None  # of calls that need one; this version of the generator does not set it
api = dipwell_client.ApiClient(settings)
decisions, limits = dipwell_client.DecisionsApi(api), dipwell_client.LimitsApi(api)
for _ in range(3):
    try:
        decision = decisions.take({"limit": "login", "key": "walk:8", "cost": 1})
        print(f"allowed, {decision.remaining} left")
    except ApiException as refused:
        if refused.status != 429:
            raise
        print(f"refused, again in {refused.headers['Retry-After']} s")
assert limits.get_limits_name("login").rate == 2
assert decisions.reset({"limit": "login", "key": "walk:8"}).remaining == 2
