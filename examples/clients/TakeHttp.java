import java.net.URI;
import java.net.http.*;

class TakeHttp {
    public static void main(String[] args) throws Exception {
        var client = HttpClient.newHttpClient();
        var take = HttpRequest.newBuilder(URI.create(args[0] + "/v1/take")).header("Content-Type", "application/x-www-form-urlencoded")
            .POST(HttpRequest.BodyPublishers.ofString("limit=login&key=java:7&cost=1")).build();
        for (int i = 0; i < 3; i++) {
            var response = client.send(take, HttpResponse.BodyHandlers.ofString());
            switch (response.statusCode()) { // the body is JSON, for the parser of your choice
                case 200 -> System.out.println("allowed, " + response.body().replaceAll("(?s).*\"remaining\":(\\d+).*", "$1") + " left");
                case 429 -> System.out.println("refused, again in " + response.headers().firstValue("Retry-After").get() + " s");
                default -> throw new IllegalStateException(response.body()); // 503: the store cannot decide
            }
        }
    }
}
