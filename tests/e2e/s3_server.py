"""An S3-compatible store on loopback. It checks each request's signature (AWS Signature Version 4) with only hashlib
and hmac."""
import calendar
import hashlib
import hmac
import re
import time
import urllib.parse
import xml.sax.saxutils

EMPTY = hashlib.sha256(b"").hexdigest()
FORM = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, *"
                  r"SignedHeaders=([a-z0-9;-]+), *Signature=([0-9a-f]{64})")


def canonical_query(query):
    pairs = [tuple(urllib.parse.unquote(part) for part in item.partition("=")[::2]) for item in query.split("&") if item]
    return "&".join(f"{urllib.parse.quote(k, safe='-_.~')}={urllib.parse.quote(v, safe='-_.~')}" for k, v in sorted(pairs))


def signature(secret, method, target, headers, signed, region):
    """Computes the signature by AWS's page "Signature calculations for the Authorization header". `headers` have
    names in lower case."""
    path, _, query = target.partition("?")
    lines = [method, urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~"), canonical_query(query),
             *(f"{name}:{' '.join(headers[name].split())}" for name in signed), "", ";".join(signed),
             headers.get("x-amz-content-sha256", EMPTY)]
    moment = headers["x-amz-date"]
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
    key = b"AWS4" + secret.encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


def check_published_example():
    """The example of Amazon's page, GET Object, has the signature that is printed there."""
    headers = {"host": "examplebucket.s3.amazonaws.com", "range": "bytes=0-9", "x-amz-content-sha256": EMPTY,
               "x-amz-date": "20130524T000000Z"}
    made = signature("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "GET", "/test.txt", headers, sorted(headers), "us-east-1")
    assert made == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", made


class Store:
    """One bucket, which a `file_server.Server` serves at /BUCKET/. Attributes may change between requests."""

    def __init__(self, server, bucket, objects, keys):
        self.server, self.bucket, self.objects = server, bucket, objects
        self.keys = keys  # {access key id: secret}
        self.region, self.token, self.public, self.may_list = "eu-test-1", None, False, True
        self.expired, self.act, self.page = False, None, 2
        self.skew = 0     # seconds by which the store's clock is ahead
        self.signed = self.unsigned = 0
        self.pages = []  # the number of keys on each page of a listing
        server.behave[f"/{bucket}/"] = self.guarded(self.listing)
        for key, body in objects.items():
            server.files[f"/{bucket}/{key}"] = body
            server.behave[f"/{bucket}/{key}"] = self.guarded(lambda h, n: self.act(h, n) if self.act else False)

    def refuse(self, handler, status, code, more=""):
        return handler.answer(status, f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message>{more}</Error>".encode())

    def problem(self, handler):
        """Returns (status, code) for a request with a wrong signature, and None for a good one."""
        headers = {k.lower(): v for k, v in handler.headers.items()}
        found = FORM.fullmatch(headers.get("authorization", ""))
        if not found:
            self.unsigned += 1
            return None if self.public and "authorization" not in headers else (403, "AccessDenied")
        key_id, day, region, signed, given = found.groups()
        signed = signed.split(";")
        if key_id not in self.keys:
            return 403, "InvalidAccessKeyId"
        if region != self.region:
            return 400, "AuthorizationHeaderMalformed"
        wanted = {"host", "x-amz-date"} | {name for name in headers if name.startswith("x-amz-")}
        if not wanted <= set(signed) or day != headers["x-amz-date"][:8] or headers.get("x-amz-content-sha256") != EMPTY:
            return 403, "AccessDenied"
        sent = calendar.timegm(time.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ"))
        if abs(time.time() + self.skew - sent) > 900:
            return 403, "RequestTimeTooSkewed"
        if self.expired:
            return 400, "ExpiredToken"
        if headers.get("x-amz-security-token") != self.token:
            return 403, "InvalidToken"
        if signature(self.keys[key_id], "GET", handler.path, headers, signed, region) != given:
            return 403, "SignatureDoesNotMatch"
        self.signed += 1
        return None

    def guarded(self, act):
        def guard(handler, number):
            wrong = self.problem(handler)
            if wrong:
                return self.refuse(handler, *wrong, f"<Region>{self.region}</Region>" if wrong[0] == 400 else "")
            return act(handler, number)
        return guard

    def listing(self, handler, _):
        if not self.may_list:
            return self.refuse(handler, 403, "AccessDenied")
        words = dict(urllib.parse.parse_qsl(handler.path.partition("?")[2]))
        assert words["list-type"] == "2", words
        # The continuation token has characters that a query must escape.
        after = words.get("continuation-token", "").removeprefix("from+/=&")
        keys = sorted(k for k in self.objects if k.startswith(words.get("prefix", "")) and k > after)
        part, rest = keys[:self.page], keys[self.page:]
        self.pages.append(len(part))
        escape = xml.sax.saxutils.escape
        entries = "".join(f"<Contents><Key>{escape(k)}</Key><ETag>&quot;one&quot;</ETag><Size>{len(self.objects[k])}</Size>"
                          "</Contents>" for k in part)
        more = f"<NextContinuationToken>from+/=&amp;{escape(part[-1])}</NextContinuationToken>" if rest else ""
        body = (f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>{self.bucket}</Name><IsTruncated>{'true' if rest else 'false'}</IsTruncated>{more}{entries}"
                "</ListBucketResult>")
        return handler.answer(200, body.encode())
