"""Which strings are secrets: tokens by their form, others by what stands before them.

Each row of ``KINDS`` has words of which a text must contain one, in small letters, and
an expression. The forms are those that issuers publish for scanners. What has no form
(passwords, keys of plain hexadecimal digits) is found by its context.
"""

# ruff: noqa: E501, ISC004 - a table reads best with a row for each kind.

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEFORE = r"(?<![A-Za-z0-9])"
_AFTER = r"(?![A-Za-z0-9])"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Of an assignment; "token" may stand anywhere in a name, other words at its end.
_NAMES = (
    r"[\w.-]{0,60}(?:token|secret|passw(?:or)?d|passphrase|credential|api[_-]?key"
    r"|access[_-]?key|auth[_-]?key|account[_-]?key|private[_-]?key|signing[_-]?key"
    r"|encryption[_-]?key|master[_-]?key|license[_-]?key|shared[_-]?key|pwd|_pat)"
    r"[\w.-]{0,40}"
)
_QUOTE = r"(?:\\?[\"'])?"
# Not what only names or hides one, nor a number or a word of a configuration.
_VALUE = (
    r"(?!(?:none|null|true|false|yes|no|nan|unset|missing|redacted|required|invalid"
    r"|expired)\b|\*+|x{3,}|<|\$|%|\[|\{|\(|\.\.\.)"
    r"[^\s\"'\\,;)}\]<>]{4,}"
)
# Issuers whose keys are plain digits, known by the name that stands near them.
_ISSUERS = (
    "adafruit|airtable|algolia|asana|atlassian|bitbucket|bugsnag|circleci|cloudflare"
    "|codecov|cohere|comet|confluent|contentful|datadog|digitalocean|dropbox|fastly"
    "|finnhub|gitter|heroku|honeycomb|intercom|kaggle|kraken|kucoin|launchdarkly|lob"
    "|mailgun|mapbox|mattermost|mistral|neptune|netlify|newrelic|ngrok|nytimes|okta"
    "|pagerduty|plaid|rapidapi|sendbird|sentry|snyk|sonar|squarespace|sumologic"
    "|travis|trello|twilio|twitch|twitter|wandb|weights|yandex|zendesk"
)


def _form(kind: str, prefixes: str, rest: str) -> tuple[str, tuple[str, ...], str]:
    """A row of tokens that begin with one of some words."""
    words = prefixes.split()
    begin = "|".join(map(re.escape, words))
    return (
        kind,
        tuple(word.lower() for word in words),
        rf"{_BEFORE}(?:{begin}){rest}",
    )


_T = r"[\w-]"
KINDS: Final = (
    # Hubs of models, data and experiments
    _form("Hugging Face", "hf_ api_org_", r"[A-Za-z]{34}" + _AFTER),
    _form("Hugging Face", "hf_", r"[A-Za-z0-9]{30,40}" + _AFTER),
    _form("OpenAI", "sk-proj- sk-svcacct- sk-admin- sk-None-", _T + "{20,}"),
    _form("Anthropic", "sk-ant-", _T + "{20,}"),
    _form("OpenRouter", "sk-or-v1-", "[0-9a-f]{32,}"),
    _form("language model", "sk-", r"[A-Za-z0-9]{20,}" + _AFTER),
    _form("Groq, xAI, Perplexity, Fireworks", "gsk_ xai- pplx- fw_", r"\w{20,}"),
    _form("NVIDIA", "nvapi-", _T + "{40,}"),
    _form("Replicate", "r8_", r"\w{30,}"),
    _form("LangSmith", "lsv2_pt_ lsv2_sk_", r"\w{20,}"),
    _form("Pinecone", "pcsk_", r"\w{20,}"),
    _form("Weights & Biases", "wandb_v1_ local-", r"\w{30,}"),
    _form("Prefect", "pnu_ pnb_", r"\w{20,}"),
    # Clouds
    _form("AWS", "AKIA ASIA ABIA ACCA A3T", r"[A-Z0-9]{16}" + _AFTER),
    _form("AWS Bedrock", "ABSK bedrock-api-key-", r"[\w+/=-]{30,}"),
    ("AWS", ("aws",), r"(?i)aws.{0,40}?[\"'=:\s][A-Za-z0-9/+]{40}(?![\w/+=])"),
    _form("Google", "AIza", _T + "{35}"),
    _form("Google OAuth", "ya29.", _T + "{20,}"),
    _form("Google OAuth", "GOCSPX-", _T + "{20,}"),
    ("Google", ("1//0",), _BEFORE + r"1//0[\w-]{30,}"),
    ("Azure", ("q~",), r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,34}(?![\w~.-])"),
    _form("Alibaba", "LTAI", r"[A-Za-z0-9]{12,24}" + _AFTER),
    _form("Tencent", "AKID", r"[A-Za-z0-9]{13,40}" + _AFTER),
    _form("Yandex", "AQVN YCAJ t1.9eu", r"[\w-]{20,}"),
    _form("DigitalOcean", "dop_v1_ doo_v1_ dor_v1_", "[0-9a-f]{64}"),
    _form("Databricks", "dapi", r"[0-9a-f]{32}(?:-\d)?" + _AFTER),
    _form("Fly.io", "fo1_ fm1a_ fm1r_ fm2_", r"[\w/+=-]{20,}"),
    _form("Heroku", "HRKU-", r"[\w-]{20,}"),
    _form("Supabase, PlanetScale", "sbp_ pscale_tkn_ pscale_pw_", r"[\w.-]{20,}"),
    _form("Netlify, Vercel", "nfp_ nfc_ nfo_ vcp_ vck_", r"\w{20,}"),
    _form("Cloudflare", "v1.0-", r"[0-9a-f]{20,}-[0-9a-f]{60,}"),
    _form("Tailscale", "tskey-", _T + "{15,}"),
    # Secrets and machines
    _form("Vault", "hvs. hvb. hvr.", _T + "{20,}"),
    ("Vault", ("s.",), r"(?<![\w./-])s\.(?=\w*\d)(?=\w*[A-Z])[A-Za-z0-9]{24}(?![\w.])"),
    ("Terraform", (".atlasv1.",), r"\w{10,}\.atlasv1\.[\w=-]{40,}"),
    _form("Doppler", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim.", r"[\w.-]{30,}"),
    _form("1Password", "ops_eyJ A3-", r"[\w+/=-]{30,}"),
    _form("age", "AGE-SECRET-KEY-1", r"[A-Z0-9]{40,}"),
    _form("Pulumi", "pul-", r"[0-9a-f]{40}" + _AFTER),
    _form("OpenShift", "sha256~", _T + "{40,}"),
    # Code and packages
    _form("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", r"\w{20,}"),
    _form("GitHub", "github_pat_", r"\w{20,}"),
    _form(
        "GitLab",
        "glpat- gldt- glcbt- glptt- glft- glimt- glagent- gloas- glrt- glsoat- GR1348941",
        _T + "{20,}",
    ),
    _form("Bitbucket, Atlassian", "ATBB ATATT3 ATCTT3", r"[\w=-]{20,}"),
    _form("npm", "npm_", r"[A-Za-z0-9]{36}" + _AFTER),
    _form("PyPI", "pypi-AgE", _T + "{40,}"),
    _form("RubyGems, Clojars", "rubygems_ CLOJARS_", "[0-9a-z]{40,}"),
    _form("crates.io", "cio", r"[A-Za-z0-9]{32}" + _AFTER),
    _form("NuGet", "oy2", "[a-z0-9]{43}" + _AFTER),
    _form("Docker", "dckr_pat_ dckr_oat_", _T + "{20,}"),
    _form("Artifactory", "AKCp cmVmdGtu", r"[A-Za-z0-9]{40,}"),
    _form("Sonar", "sqp_ squ_ sqa_", "[0-9a-f]{40}"),
    _form("CircleCI, Buildkite", "CCIPAT_ CCIPRJ_ bkua_ bkaj_", r"\w{20,}"),
    _form("Postman", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),
    _form("ReadMe, Typeform", "rdme_ tfp_", r"[\w.=-]{40,}"),
    # Messages, work and money
    _form("Slack", "xoxb- xoxp- xoxa- xoxo- xoxr- xoxs- xoxe- xoxc- xoxd- xapp- xoxe.", _T + "{10,}"),
    (
        "webhook",
        ("hooks.slack", "webhook", "/services/"),
        r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[\w/+-]{20,}"
        r"|discord(?:app)?\.com/api/webhooks/\d{10,}/[\w-]{30,}"
        r"|webhook\.office\.com/webhookb2/[\w@/-]{30,}"
        r"|hooks\.zapier\.com/hooks/catch/[\w/]{6,}",
    ),
    ("Discord", (".",), _BEFORE + r"[MNO][A-Za-z\d_-]{23,27}\.[\w-]{6}\.[\w-]{27,38}" + _AFTER),
    ("Telegram", (":aa",), r"(?<!\d)\d{8,10}:AA[\w-]{33}(?![\w-])"),
    _form("Twilio", "SK AC", "[0-9a-f]{32}" + _AFTER),
    ("SendGrid", ("sg.",), _BEFORE + r"SG\.[\w-]{16,32}\.[\w-]{16,64}"),
    _form("Mailgun", "key-", "[0-9a-z]{32}" + _AFTER),
    ("Mailchimp", ("-us",), _BEFORE + r"[0-9a-f]{32}-us\d{1,2}" + _AFTER),
    _form("Brevo", "xkeysib- xsmtpsib-", "[0-9a-f]{60,}"),
    _form("Stripe", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_ pk_live_", r"\w{16,}"),
    _form("Square", "sq0atp- sq0csp- EAAAE", _T + "{20,}"),
    ("PayPal", ("access_token$",), r"access_token\$(?:production|sandbox)\$\w+\$\w+"),
    _form("Shopify", "shpat_ shpca_ shppa_ shpss_", "[0-9a-fA-F]{32}"),
    _form("Adyen", "AQE", r"[\w+/=-]{60,}"),
    _form("Facebook", "EAA", r"[A-Za-z0-9]{80,}"),
    _form("Twitter", "AAAAAAAAAAAAAAAAAAAAA", r"[\w%]{60,}"),
    _form("Linear, Notion, Figma", "lin_api_ ntn_ secret_ figd_ figu_", _T + "{36,}"),
    ("Airtable", ("pat",), _BEFORE + r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    _form("Dropbox", "sl.", _T + "{100,}"),
    _form("EasyPost, Duffel, Frame.io", "EZAK EZTK duffel_live_ duffel_test_ fio-u-", _T + "{40,}"),
    # Watching
    _form("Grafana", "glsa_ glc_ eyJrIjoi", r"[\w+/=]{30,}"),
    _form("New Relic", "NRAK- NRJS- NRII- NRAA-", r"[\w-]{19,}"),
    _form("Sentry", "sntrys_ sntryu_", r"[\w+/=]{40,}"),
    ("Sentry", ("sentry",), r"https?://[0-9a-f]{32}(?::[0-9a-f]{32})?@[\w.-]*sentry[\w.-]*/\d+"),
    _form("Dynatrace", "dt0c01. dt0s16.", r"[A-Z0-9]{20,}\.[A-Z0-9]{40,}"),
    _form("PostHog, Honeycomb", "phx_ phc_ hcaik_ hcaic_", r"\w{30,}"),
    # Keys and protocols
    ("private key", ("-----begin",), r"-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|PGP)[A-Z ]*-----?"),
    ("private key", ("putty-user-key",), r"PuTTY-User-Key-File-\d"),
    ("JSON web token", ("eyj",), _BEFORE + r"eyJ[\w-]{10,}\.[\w-]+"),
    (
        "authorization",
        ("authorization", "bearer", "x-api-key", "x-auth", "x-vault"),
        r"(?i)(?:authorization[\"']?\s*[:=]\s*[\"']?(?:basic|digest|token|apikey|bearer)?"
        rf"\s+{_VALUE}|\bbearer\s+[\w.~+/=-]{{12,}}|x-(?:api|auth|vault)-\w+[\"']?\s*"
        rf"[:=]\s*[\"']?{_VALUE})",
    ),
    ("cookie", ("cookie",), r"(?i)\b(?:set-)?cookie[\"']?\s*[:=]\s*[\"']?[\w.-]+=[^\s;\"']{8,}"),
    ("address with a password", ("://",), r"\b[A-Za-z][\w+.-]*://[^\s/:@\"'<>]*:[^\s/@\"'<>]+@[\w.\[-]"),
    ("address with a token", ("://",), r"\bhttps?://[\w%.~+-]{16,}@[\w.-]+"),
    (
        "signed address",
        ("sig=", "signature=", "token=", "key="),
        r"(?i)[?&](?:sig|signature|x-(?:amz|goog)-(?:signature|security-token)|token"
        r"|access_token|key|api_?key)=[\w%.~+/=-]{10,}",
    ),
    ("netrc", ("login",), r"(?i)\blogin\s+\S+\s+password\s+\S+"),
    (
        "assignment",
        ("token", "secret", "pass", "credential", "key", "pwd", "_pat"),
        rf"(?i)(?<![\w.-]){_NAMES}{_QUOTE}\s*(?:=>|:=|[=:]){{1,2}}\s*{_QUOTE}{_VALUE}",
    ),
    (
        "option",
        ("--",),
        r"(?i)--(?:[\w]+-)*(?:password|passwd|token|secret|api-?key|access-key)(?:-key)?"
        # Not the name of a value, as in a text of help.
        rf"[\s,\"']+(?!-)(?!(?-i:[A-Z_]+)(?![\w-])){_VALUE}",
    ),
    ("command", ("-u ", "--user "), rf"(?i)\bcurl\b.{{0,80}}?\s(?:-u|--user)\s+\S+?:{_VALUE}"),
    ("command", ("mysql", "sshpass"), r"(?i)\b(?:mysql\w*|sshpass)\b.{0,80}?\s-p\s?\S{4,}"),
    ("key of a service", ('"key"',), r"\"key\"\s*:\s*\"[0-9A-Za-z]{32,}\""),
    (
        "key of a service",
        tuple(_ISSUERS.split("|")),
        rf"(?i)(?<![A-Za-z])(?:{_ISSUERS})(?![a-z]).{{0,60}}?[\"'=:\s]"
        rf"(?:{_UUID}|[0-9a-f]{{32,64}}|(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{{32,64}})"
        rf"(?![\w-])",
    ),
)  # fmt: skip
_SHOWN = 6


@functools.cache
def _compiled() -> tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...]:
    return tuple((kind, words, re.compile(text)) for kind, words, text in KINDS)


def find(text: str) -> Iterator[tuple[str, str]]:
    """Yields the kind of each secret in a text, and its beginning; the rest is hidden."""
    small = text.lower()
    for kind, words, pattern in _compiled():
        if any(word in small for word in words):
            for found in dict.fromkeys(match[0] for match in pattern.finditer(text)):
                yield kind, f"{found[:_SHOWN]}..."


def text_of(name: str, content: bytes) -> str:
    """Returns all that a reader of a file can find in it, escapes of JSON resolved."""
    text = content.decode("utf-8", errors="surrogateescape")
    if not name.endswith((".json", ".jsonl")) or "\\" not in text:
        return text
    lines = text.splitlines() if name.endswith(".jsonl") else [text]
    return "\n".join((text, *(plain for line in lines for plain in _resolved(line))))


def _resolved(line: str) -> tuple[str, ...]:
    try:
        return tuple(_strings(untrusted.parsed(line)))
    except untrusted.DamagedFileError:  # no JSON: it was searched as it is
        return ()


def _strings(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, name)
    elif isinstance(value, str):
        yield f"{name}: {value}"
