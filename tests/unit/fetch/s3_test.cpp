// Addresses, listings and refusals of S3-compatible stores. A server of tests/e2e/data_s3 checks
// the signatures.
#include "fetch/s3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

namespace nsa::fetch {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

Result<S3Store> store_of(const Environment& environment) {
  return s3_store([&](const char* name) {
    const auto at = environment.find(name);
    return at == environment.end() ? std::string() : at->second;
  });
}

TEST(S3Store, TakesTheVariablesOfOtherTools) {
  const auto store = store_of({{"AWS_ENDPOINT_URL", "http://other:1/"},
                               {"AWS_ENDPOINT_URL_S3", "http://minio:9000//"},
                               {"AWS_DEFAULT_REGION", "eu-west-1"},
                               {"AWS_ACCESS_KEY_ID", "AKIA"},
                               {"AWS_SECRET_ACCESS_KEY", "s+/="}});
  ASSERT_TRUE(store) << store.error().what;
  EXPECT_EQ(store->endpoint, "http://minio:9000");
  EXPECT_EQ(store->region, "eu-west-1");
  EXPECT_EQ(store->key_id + " " + store->secret, "AKIA s+/=");
  EXPECT_EQ(store_of({})->region, "us-east-1");
}

TEST(S3Store, MistakesAreToldWithoutTheSecret) {
  for (const Environment& wrong :
       {Environment{{"AWS_SECRET_ACCESS_KEY", "s3cr3t"}},
        {{"AWS_ACCESS_KEY_ID", "AKIA"}},
        {{"AWS_ACCESS_KEY_ID", "A"}, {"AWS_SECRET_ACCESS_KEY", "s3 cr3t"}},
        {{"AWS_ENDPOINT_URL", "ftp://ann:s3cr3t@host"}},
        {{"AWS_ENDPOINT_URL", "https://ann:s3cr3t@host"}},
        {{"AWS_REGION", "us east"}}}) {
    const auto store = store_of(wrong);
    ASSERT_FALSE(store);
    EXPECT_EQ(store.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(store.error().next, HasSubstr("export"));
    EXPECT_EQ((store.error().what + store.error().next).find("s3cr3t"), std::string::npos);
  }
}

TEST(S3Place, NamesABucketAndWhatLiesInIt) {
  const auto place = s3_place("s3://my-bucket.eu/a/b c/*.parquet");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->bucket, "my-bucket.eu");
  EXPECT_EQ(place->path, "a/b c/*.parquet");
  for (const char* wrong : {"s3://", "s3://bucket", "s3://bucket/", "s3:///key",
                            "s3://user@host/key", "s3://host:80/key", "s3://../key"})
    EXPECT_FALSE(s3_place(wrong)) << wrong;
}

TEST(S3Address, IsAHostForABucketOrAFolderOfTheEndpoint) {
  S3Store amazon;
  amazon.region = "eu-west-1";
  EXPECT_EQ(s3_object_url(amazon, {"b", "a/x+y z.txt"}),
            "https://b.s3.eu-west-1.amazonaws.com/a/x%2By%20z.txt");
  EXPECT_EQ(s3_object_url(amazon, {"b.c", "k"}), "https://s3.eu-west-1.amazonaws.com/b.c/k");
  amazon.region = "cn-north-1";
  EXPECT_EQ(s3_object_url(amazon, {"b", "k"}), "https://b.s3.cn-north-1.amazonaws.com.cn/k");
  S3Store own;
  own.endpoint = "http://127.0.0.1:9000";
  EXPECT_EQ(s3_object_url(own, {"b", "k"}), "http://127.0.0.1:9000/b/k");
  EXPECT_EQ(s3_listing_url(own, "b", "a b/", ""),
            "http://127.0.0.1:9000/b/?list-type=2&prefix=a%20b%2F");
  EXPECT_EQ(s3_listing_url(own, "b", "", "x/=="),
            "http://127.0.0.1:9000/b/?continuation-token=x%2F%3D%3D&list-type=2&prefix=");
}

TEST(S3Listing, GivesKeysSizesTagsAndTheNextPage) {
  const auto listing = parse_s3_listing(R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>
  <Contents><Key>a &amp; b.txt</Key><ETag>&quot;e1&quot;</ETag><Size>7</Size></Contents>
  <Contents><Key> c.txt</Key><Size>0</Size></Contents>
  <IsTruncated>true</IsTruncated><NextContinuationToken>n/=</NextContinuationToken>
</ListBucketResult>)",
                                        "x");
  ASSERT_TRUE(listing) << listing.error().what;
  ASSERT_EQ(listing->objects.size(), 2u);
  EXPECT_EQ(listing->objects[0].key, "a & b.txt");
  EXPECT_EQ(listing->objects[0].etag, "\"e1\"");
  EXPECT_EQ(listing->objects[0].bytes, 7u);
  EXPECT_EQ(listing->objects[1].key, " c.txt");
  EXPECT_EQ(listing->continuation, "n/=");
}

TEST(S3Listing, IgnoresSpaceAroundATruth) {
  // So long a text is not kept inside a std::string, so a view of a temporary would see freed
  // memory.
  const std::string space(100, ' ');
  const auto listing =
      parse_s3_listing("<ListBucketResult><IsTruncated>" + space + "true" + space +
                           "</IsTruncated><NextContinuationToken>n</NextContinuationToken>"
                           "</ListBucketResult>",
                       "x");
  ASSERT_TRUE(listing) << listing.error().what;
  EXPECT_EQ(listing->continuation, "n");
}

TEST(S3Listing, RefusesWhatIsNone) {
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i)
    deep += "<a>";
  for (const std::string& wrong :
       {std::string(), std::string("no"), std::string("<html></html>"), deep,
        std::string("<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>"),
        std::string("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"),
        std::string("<ListBucketResult><Contents><Key>a</Key><Size>-x</Size></Contents>"
                    "</ListBucketResult>")})
    EXPECT_EQ(parse_s3_listing(wrong, "x").error().code, ErrorCode::kCorrupt)
        << wrong.substr(0, 80);
}

std::string advice(int status, const std::string& body, const S3Store& store = {},
                   const std::string& region = "") {
  HttpAnswer answer;
  answer.status = status;
  if (!region.empty()) answer.headers["x-amz-bucket-region"] = region;
  return s3_refusal(store, "https://b/k", answer, body).next;
}

TEST(S3Refusal, SaysWhatToDo) {
  S3Store account;
  account.key_id = "AKIA";
  EXPECT_THAT(advice(403, "<Error><Code>AccessDenied</Code></Error>"), HasSubstr("of an account"));
  EXPECT_THAT(advice(401, "", account), HasSubstr("s3:ListBucket"));
  EXPECT_THAT(advice(403, "<Code>SignatureDoesNotMatch</Code>", account), HasSubstr("right AWS_"));
  EXPECT_THAT(advice(403, "<Code>RequestTimeTooSkewed</Code>", account), HasSubstr("clock"));
  EXPECT_THAT(advice(400, "<Code>ExpiredToken</Code>", account), HasSubstr("new credentials"));
  EXPECT_THAT(advice(301, "", account, "eu-west-1"), HasSubstr("AWS_REGION=eu-west-1"));
  EXPECT_THAT(advice(400, "<Code>AuthorizationHeaderMalformed</Code><Region>x-1</Region>", account),
              HasSubstr("AWS_REGION=x-1"));
  EXPECT_THAT(advice(404, "<Code>NoSuchBucket</Code>", account), HasSubstr("check bucket"));
}

TEST(S3Refusal, ShowsTheStoresOwnWords) {
  HttpAnswer answer;
  answer.status = 404;
  const Error error =
      s3_refusal({}, "https://b/k", answer,
                 "<Error><Code>NoSuchKey</Code><Message>No\x1b[2J</Message></Error>");
  EXPECT_THAT(error.what, HasSubstr("https://b/k answered 404 NoSuchKey (No"));
  EXPECT_EQ(error.what.find('\x1b'), std::string::npos);
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
}

} // namespace
} // namespace nsa::fetch
