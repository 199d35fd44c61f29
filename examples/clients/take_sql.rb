require "pg"

db = PG.connect(ARGV[0])
db.type_map_for_results = PG::BasicTypeMapForResults.new(db) # bool and bigint become Ruby's
3.times do
  db.transaction do # the token comes back if it fails
    row = db.exec_params("select allowed, remaining, extract(epoch from retry_after)::float8 as retry from dipwell.take($1, $2, $3)", ["login", "ruby:7", 1])[0]
    puts row["allowed"] ? "allowed, #{row["remaining"]} left" : "refused, again in #{row["retry"].round} s"
  end
end
