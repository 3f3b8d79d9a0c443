"""Secrets are found whoever issued them; nothing that studies have is taken for one.

The secrets are made up here from the forms that their issuers publish, so that no file
of the project has one.
"""

import json
import random
import string

import covering
import published_studies
import pytest

from reports.exports import secrets

_CHANCE = random.Random(63)


def _drawn(characters, number):
    # Ends with a digit and a letter, as long random words do.
    return "".join(_CHANCE.choices(characters, k=number - 2)) + characters[-1] + "7"


def _any(number):
    return _drawn(string.ascii_letters + string.digits + "A", number)


def _hex(number):
    return _drawn("0123456789abcdef", number)


def _big(number):
    return _drawn(string.ascii_uppercase + string.digits + "Q", number)


def _letters(number):
    return "".join(_CHANCE.choices(string.ascii_letters, k=number))


_UUID = "-".join(_hex(n) for n in (8, 4, 4, 4, 12))
SECRETS = {
    "Hugging Face": "hf_" + _letters(34),
    "Hugging Face organization": "api_org_" + _letters(34),
    "OpenAI": "sk-" + _any(20) + "T3BlbkFJ" + _any(20),
    "OpenAI project": "sk-proj-" + _any(80),
    "Anthropic": "sk-ant-api03-" + _any(93) + "AA",
    "NVIDIA": "nvapi-" + _any(64),
    "Replicate": "r8_" + _any(37),
    "Groq": "gsk_" + _any(52),
    "LangSmith": "lsv2_pt_" + _hex(32) + "_" + _hex(10),
    "Pinecone": "pcsk_" + _any(60),
    "Weights & Biases": "wandb: using key " + _hex(40),
    "Weights & Biases of a variable": "WANDB_API_KEY=" + _hex(40),
    "Comet": "COMET_API_KEY: " + _any(25),
    "Neptune": "NEPTUNE_API_TOKEN='" + _any(90) + "=='",
    "Kaggle": '{"username":"jane","key":"' + _hex(32) + '"}',
    "Prefect": "pnu_" + _any(36),
    "AWS key": "AKIA" + _big(16),
    "AWS session": "ASIA" + _big(16),
    "AWS secret": "aws_secret_access_key = " + _any(38) + "/+",
    "AWS secret without a name": "AWS credentials: " + _any(40),
    "Google API": "AIza" + _any(35),
    "Google OAuth": "ya29." + _any(60),
    "Google client": "GOCSPX-" + _any(28),
    "Google service account": '{"private_key_id": "' + _hex(40) + '"}',
    "Azure client": _any(3) + "8Q~" + _any(34),
    "Azure storage": "AccountName=a;AccountKey=" + _any(86) + "==;Endpoint",
    "Azure signature": "https://a.blob.example/c?sv=2024&sig=" + _any(43) + "%3D",
    "Alibaba": "LTAI" + _any(20),
    "DigitalOcean": "dop_v1_" + _hex(64),
    "Databricks": "dapi" + _hex(32),
    "Heroku": "HEROKU_KEY " + _UUID,
    "Cloudflare": "cloudflare: " + _any(40),
    "Fly.io": "fo1_" + _any(43),
    "Supabase": "sbp_" + _hex(40),
    "PlanetScale": "pscale_tkn_" + _any(43),
    "Tailscale": "tskey-auth-" + _any(20),
    "Vault": "hvs." + _any(90),
    "Vault of earlier versions": "token is s." + _letters(21) + "Z4Q",
    "Terraform": _any(14) + ".atlasv1." + _any(67),
    "Doppler": "dp.pt." + _any(43),
    "Pulumi": "pul-" + _hex(40),
    "age": "AGE-SECRET-KEY-1" + _big(58),
    "GitHub": "ghp_" + _any(36),
    "GitHub application": "ghs_" + _any(36),
    "GitHub fine-grained": "github_pat_" + _any(22) + "_" + _any(59),
    "GitLab": "glpat-" + _any(20),
    "GitLab runner": "glrt-" + _any(20),
    "Bitbucket": "ATBB" + _any(32),
    "Atlassian": "ATATT3xFf" + _any(180),
    "npm": "npm_" + _any(36),
    "PyPI": "pypi-AgEIcHlwaS5vcmc" + _any(150),
    "RubyGems": "rubygems_" + _hex(48),
    "Docker": "dckr_pat_" + _any(27),
    "Artifactory": "AKCp" + _any(69),
    "Slack bot": "xoxb-" + "1234567890-" * 2 + _any(24),
    "Slack user": "xoxp-" + "1234567890-" * 3 + _hex(32),
    "Slack application": "xapp-1-A0123-4567-" + _hex(64),
    "Slack hook": "https://hooks.slack.com/services/T" + _big(8) + "/B" + _big(8) + "/"
    + _any(24),
    "Discord": "M" + _any(23) + "." + _any(6) + "." + _any(27),
    "Discord hook": "https://discord.com/api/webhooks/123456789012345678/" + _any(68),
    "Teams hook": "https://x.webhook.office.com/webhookb2/" + _UUID + "@" + _UUID,
    "Telegram": "123456789:AA" + _any(33),
    "Twilio": "SK" + _hex(32),
    "SendGrid": "SG." + _any(22) + "." + _any(43),
    "Mailgun": "key-" + _hex(32),
    "Mailchimp": _hex(32) + "-us12",
    "Stripe": "sk_live_" + _any(24),
    "Stripe hook": "whsec_" + _any(32),
    "Square": "sq0atp-" + _any(22),
    "Shopify": "shpat_" + _hex(32),
    "Facebook": "EAA" + _any(160),
    "Twitter": "A" * 22 + _any(80),
    "Linear": "lin_api_" + _any(40),
    "Notion": "ntn_" + _any(46),
    "Figma": "figd_" + _any(40),
    "Airtable": "pat" + _any(14) + "." + _hex(64),
    "Postman": "PMAK-" + _hex(24) + "-" + _hex(34),
    "Grafana": "glsa_" + _any(32) + "_" + _hex(8),
    "New Relic": "NRAK-" + _big(27),
    "Datadog": "DD: datadog " + _hex(32),
    "Sentry": "sntrys_" + _any(60),
    "Sentry address": "https://" + _hex(32) + "@o1.ingest.sentry.io/12",
    "Dynatrace": "dt0c01." + _big(24) + "." + _big(64),
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "PGP key": "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "PuTTY key": "PuTTY-User-Key-File-2: ssh-rsa",
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9." + _any(40) + "." + _any(43),
    "bearer": "Authorization: Bearer " + _any(30),
    "basic": "Authorization: Basic " + _any(24) + "==",
    "header": "X-Api-Key: " + _any(20),
    "cookie": "Set-Cookie: session=" + _any(40),
    "database": "postgres://jane:hunter2@db:5432/x",
    "proxy": "HTTPS_PROXY=http://jane:hunter2@proxy:3128",
    "redis": "redis://:hunter2@cache:6379",
    "git": "https://" + _any(40) + "@git.example/x.git",
    "netrc": "machine a login jane password hunter2",
    "environment": "TF_TOKEN_app=abc123",
    "environment of a database": "TF_VAR_db_password: hunter2",
    "JSON": '{"client_secret": "' + _any(20) + '"}',
    "JSON within JSON": '{"a": "{\\"api_key\\": \\"' + _any(20) + '\\"}"}',
    "YAML": "passphrase: open sesame",
    "command": "mc alias --secret-key " + _any(20),
    "command with an equals sign": "login --password=hunter2",
    "list of a command": "['login', '--token', '" + _any(20) + "']",
    "curl": "curl -s -u jane:hunter2 https://example.org",
}  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_found_and_not_shown(name):
    """Within an error message, a record of JSON, and a page."""
    secret = SECRETS[name]
    message = f"RuntimeError: 401 for {secret} (see the log)"
    for text in (message, json.dumps({"kind": "failure", "reason": message})):
        found = list(secrets.find(secrets.text_of("rank_0.jsonl", text.encode())))

        assert found, name
        assert not any(secret in shown for _, shown in found)


def test_a_secret_in_escapes_of_json_is_found():
    """A reader of the record sees it, a search of the bytes does not."""
    escaped = "".join(f"\\u{ord(c):04x}" for c in SECRETS["GitHub"])
    text = f'{{"reason": "{escaped}"}}\n'

    assert list(secrets.find(secrets.text_of("status.json", text.encode())))


@pytest.mark.parametrize(
    "text",
    [
        "tokens per second; the secret of speed; no password is needed",
        'num_tokens=512, max_tokens: none, {"token": null}, key=value',
        "primary_key: case 3; keys: 12, KeyError: 'rate'",
        "commit 0123456789abcdef0123456789abcdef01234567 of the tree",
        "https://example.org/a/b?x=1#y, git+https://github.com/a/b.git",
        "task-0123456789abcdefghij0123, risk-free-12345678901234567890",
        "set HF_TOKEN=$TOKEN, password=***, --token TOKEN, api_key=<key>",
        "~/.cache/sk-learn; v1.0-rc1; CLOCK_MONOTONIC 1.2.3.4",
    ],
)
def test_words_of_reports_are_no_secrets(text):
    """A list that is always full is never read."""
    assert [] == list(secrets.find(text))


def test_published_studies_have_no_secrets():
    """Not one false alarm; the full run searches every file."""
    folders = [
        published_studies.SITE,
        *map(published_studies.study, published_studies.NAMES),
    ]
    files = [path for of in folders for path in sorted(of.rglob("*.*"))]
    step = 1 if covering.is_full() else 25
    found = [
        (path.name, kind, shown)
        for path in files[::step]
        for kind, shown in secrets.find(secrets.text_of(path.name, path.read_bytes()))
    ]

    assert len(files) > 500
    assert [] == found
