require "json"
require "net/http"

3.times do
  response = Net::HTTP.post(URI(ARGV[0] + "/v1/take"), {limit: "login", key: "ruby:7", cost: 1}.to_json, "Content-Type" => "application/json")
  raise response.body unless ["200", "429"].include?(response.code) # 503: the store cannot decide
  answer = JSON.parse(response.body)
  puts answer["allowed"] ? "allowed, #{answer["remaining"]} left" : "refused, again in #{(answer["retry_after_us"] / 1e6).round} s"
end
