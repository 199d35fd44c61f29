"""DipwellThrottle in views of Django REST framework, asked by Django's test client."""
import unittest

import django
import psycopg2.extensions
from django.conf import settings
from servers import with_schema

at = psycopg2.extensions.parse_dsn(with_schema())
settings.configure(
    SECRET_KEY="of the tests", LOGGING={"version": 1, "handlers": {"none": {"class": "logging.NullHandler"}}, "loggers": {"django": {"handlers": ["none"], "propagate": False}}},
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": at["dbname"], "USER": at["user"], "HOST": at["host"], "PORT": at["port"]}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"], USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None,
        "DEFAULT_THROTTLE_CLASSES": ["dipwell.drf.DipwellThrottle"],
        "DEFAULT_THROTTLE_RATES": {"user": "3/hour", "named": "orders", "off": None},
    },
)
django.setup()

from django.db import connection  # noqa: E402: after the settings
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from dipwell import Dipwell, DipwellError  # noqa: E402
from dipwell.drf import DipwellThrottle  # noqa: E402


class Named(DipwellThrottle):
    scope = "named"


class Off(DipwellThrottle):
    scope = "off"


class Quarter(DipwellThrottle):
    scope, rate = "quarter", "1/15m"

    def get_cache_key(self, request, view):
        return request.GET.get("key")


class View(APIView):
    def get(self, request):
        if "fail" in request.GET:
            raise ZeroDivisionError
        return Response("hello")


def view(*throttles):
    return View.as_view(throttle_classes=throttles)


urlpatterns = [path("user", View.as_view()), path("named", view(Named)), path("off", view(Off)), path("quarter", view(Quarter)), path("both", view(Named, Quarter))]


class Throttle(unittest.TestCase):
    def setUp(self):
        self.client = Client(raise_request_exception=False)
        self.d = Dipwell(connection)
        self.d.define("orders", rate=2, per="1h", plans={"banned": "blocked"})
        self.d.reset("orders", "named:127.0.0.1")
        connection.cursor().execute("select dipwell.drop(name) from dipwell.limits where name like 'drf/%'")
        DipwellThrottle._seen.clear()

    def tearDown(self):
        connection.settings_dict["ATOMIC_REQUESTS"] = False

    @classmethod
    def tearDownClass(cls):
        connection.close()

    def get(self, page, **headers):
        return self.client.get(page, **headers)

    def statuses(self, page, times):
        return [self.get(page).status_code for _ in range(times)]

    def test_rate(self):
        self.assertEqual(self.statuses("/user", 4), [200, 200, 200, 429])
        refused = self.get("/user")
        wait = self.d.check("drf/user/3/1h", "user:127.0.0.1").retry_after.total_seconds()
        self.assertTrue(0 <= int(refused["Retry-After"]) - wait <= 60, refused["Retry-After"])
        self.assertIn("Expected available in", refused.json()["detail"])
        self.assertEqual(self.get("/user", REMOTE_ADDR="192.0.2.1").status_code, 200)

    def test_named_limit(self):
        self.assertEqual(self.statuses("/named", 3), [200, 200, 429])
        self.assertEqual(self.d.check("orders", "named:127.0.0.1").remaining, 0)
        self.d.override("orders", "named:127.0.0.1", burst=5)
        self.assertEqual(self.get("/named").status_code, 200)
        self.d.end_override("orders", "named:127.0.0.1")

    def test_off_and_other_keys(self):
        self.assertEqual(self.statuses("/off", 5), [200] * 5)
        self.assertEqual(self.statuses("/quarter", 3), [200] * 3)
        self.assertEqual(self.statuses("/quarter?key=a", 2), [200, 429])
        refused = self.get("/quarter?key=a")
        self.assertTrue(840 < int(refused["Retry-After"]) <= 900)
        self.assertEqual(self.statuses("/quarter?key=" + "b" * 700, 2), [200, 429])

    def test_never(self):
        self.d.override("orders", "named:127.0.0.1", plan="banned")
        refused = self.get("/named")
        self.assertEqual((refused.status_code, "Retry-After" in refused), (429, False))
        self.d.end_override("orders", "named:127.0.0.1")

    def test_transactions(self):
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        self.assertEqual(self.get("/named?fail").status_code, 500)
        self.assertEqual(self.d.check("orders", "named:127.0.0.1").remaining, 2, "a view that fails gives its token back")
        self.assertEqual(self.get("/user?fail").status_code, 500)  # which takes back the definition too
        self.assertEqual(self.statuses("/user", 4), [200, 200, 200, 429])

    def test_a_dropped_limit(self):
        self.statuses("/user", 2)
        connection.cursor().execute("select dipwell.drop('drf/user/3/1h')")
        self.assertEqual(self.statuses("/user", 2), [500, 200])

    def test_errors_of_the_driver_are_ours(self):
        with self.assertRaises(DipwellError) as caught:
            self.d.take("nobody", "k")
        self.assertEqual((caught.exception.field, caught.exception.code), ("limit", "42704"))
