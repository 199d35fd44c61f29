package main

// examples are shown by --help of a command, below its description.
var examples = map[string]string{
	"serve": `Examples:
  dipwell serve --limit 'api=10/1s,burst=50' --limit 'day=1000/1d,algorithm=fixed_window,start=0s'
  dipwell serve --limit 'api=10/1s,burst=50' --data /var/lib/dipwell
  dipwell serve --config dipwell.yaml --listen :8080 --admin-token-file /run/secrets/dipwell
  dipwell serve --limit 'login=5/1m' --store 'postgres://dipwell@db/shop?target_session_attrs=read-write'
  dipwell serve --grpc :8081 --rls-config /etc/ratelimit/config --store 'redis://cache:6379'
  dipwell serve --limit 'site=20/1s,burst=100' --upstream http://127.0.0.1:3000 --admin 127.0.0.1:8081

A flag comes before its environment variable, that before the file, and that before the default.`,
	"take":          "Examples:\n\n  dipwell take login user:7 --cost 3\n  dipwell take api user:7 --plan pro --floor 5",
	"check":         "Example: dipwell check login user:7 && echo there is one",
	"take-up-to":    "Example: dipwell take-up-to mails batch --cost 100 --json",
	"reserve":       "Example: dipwell reserve jobs nightly --json",
	"wait":          "Example: dipwell wait mails batch --timeout 5m && send-mails",
	"charge":        "Example: dipwell charge tokens user:7 --cost 1800",
	"refund":        "Example: dipwell refund login user:7 --cost 1",
	"reset":         "Example: dipwell reset login user:7",
	"hold":          "Example:\n\n  dipwell hold builds acme --ttl 10m --id build-81 && make; dipwell settle build-81",
	"settle":        "Example: dipwell settle req-81 --cost 2150",
	"extend":        "Example: dipwell extend req-81 --ttl 30s",
	"holds":         "Example: dipwell holds builds acme",
	"override set":  "Examples:\n\n  dipwell override set api cust-7 --plan pro --for 1h --note 'ticket 81'\n  dipwell override set api cust-7 --rate 600/1m --burst 1000\n  dipwell override set quota cust-7 --start '17 00:00 Europe/Rome' --note 'billing day'",
	"override list": "Keys that a refusal has blocked are listed with --kind automatic.\n\nExample: dipwell override list api --prefix cust-",
	"override end":  "Without --kind it ends the one that decides: the temporary one, if there is one.\n\nExample: dipwell override end api cust-7",
	"audit":         "Examples:\n\n  dipwell audit api cust-7\n  dipwell audit --ndjson > audit.ndjson\n\nA store keeps the last 10,000 changes, for at most 400 days.",
	"cancel":        "Example: dipwell cancel 0198c2f3-5b6e-4cc1-9d1a-3f0a5b7c9d11",
	"limits":        "Example: dipwell limits --json",
	"keys":          "Example: dipwell keys login --prefix user: -n 20\n\nIn memory the limit must keep the text of its keys: keys: list.",
	"inspect":       "Example: dipwell inspect login user:7\n\nIt also shows the key's override and live holds, what it used in 31 days if the\nlimit has usage: true, and its last refusals by the service that answers: a\nsample, at most one a second.",
	"top": `Examples:
  dipwell top
  dipwell top --limit login -n 20 --server https://limits.internal:8443
  dipwell top --once --interval 10s
  dipwell top --hour 1h

The service counts keys in bounded memory: a count is too high by at most the
column ERROR, and never too low. Counts are of the last minute at most, and of
the one service that answers; rates per second of the last interval. --hour has
the counts of all services together; an hour is there once it has ended.`,
	"migrate up": `Example: dipwell migrate up --store postgres://postgres@db/shop

The upgrade is one transaction, and several programs may run it at the same time.
It waits for other transactions without holding up callers, and says for which.
Run it again with --logged or --unlogged to convert the tables, which PostgreSQL
then rewrites; with neither flag the kind of tables does not change.`,
	"migrate down":   "Example: dipwell migrate down --yes --store postgres://postgres@db/shop\n\nLimits and buckets are gone afterwards. The roles dipwell_app, dipwell_service and dipwell_admin stay: other databases may use them.",
	"migrate status": "Example: dipwell migrate status --store postgres://dipwell@db/shop\n\nThe exit status is 1 if the schema is missing, older or newer than this program's.",
	"migrate print": `Examples:
  dipwell migrate print > dipwell.sql
  dipwell migrate print --for goose > migrations/00007_dipwell.sql
  dipwell migrate print --for rails > db/migrate/20260101000000_dipwell.rb`,
	"config check": "Example: dipwell config check dipwell.yaml",
	"replay": `Example:
  dipwell replay --log access.log --limit 'page=10/10s,burst=20' --plot replay.svg
  dipwell replay --log api.jsonl --config dipwell.yaml --by tenant+user --plan tier --where 'path~^/v1/'
  dipwell replay --log app.log --limit page=10/10s --pattern '^%{TIMESTAMP_ISO8601:time} %{NOTSPACE:ip}'`,
	"bench": `Examples:
  dipwell bench
  dipwell bench --store postgres://dipwell@db/shop --time 30s
  dipwell bench --store redis://cache:6379 --clients 1

It takes tokens of a limit of its own, dipwell-bench-…, which allows every call,
and removes that limit and its buckets at the end, also on Ctrl-C. Calls go to
the store together, as in serve. It puts full load on the store. Exit status:
0 measured, 1 calls failed, 2 it could not measure, or not remove everything.`,
	"doctor": `Examples:
  dipwell doctor --config /etc/dipwell/dipwell.yaml
  dipwell doctor --store postgres://dipwell@db/shop
  dipwell doctor --server http://127.0.0.1:8080

It writes nothing, and works on a database without the schema. Exit status:
0 no problem (there may be warnings), 1 a problem, 2 the checks could not run.`,
	"completion": "Examples:\n  source <(dipwell completion bash)\n  dipwell completion fish > ~/.config/fish/completions/dipwell.fish\n  dipwell completion man > /usr/local/share/man/man1/dipwell.1",
	"version":    "Example: dipwell version",
	"help":       "Example: dipwell help take",
}
