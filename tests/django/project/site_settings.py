"""A shop, on the databases that the tests name in DATABASE_URLS."""

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

pymysql.install_as_MySQLdb()
ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite3"}


def _database(url):
    parts = urlsplit(url)
    found = {"ENGINE": f"django.db.backends.{ENGINES[parts.scheme.partition('+')[0]]}", "NAME": parts.path[1:]}
    if not parts.scheme.startswith("sqlite"):
        found |= {
            "USER": parts.username or "",
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
    return found


SECRET_KEY = "not a secret"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
DATABASES = {alias: _database(url) for alias, url in json.loads(os.environ["DATABASE_URLS"]).items()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "lapse.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "site_urls"
ALLOWED_HOSTS = ["*"]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
LAPSE_TTL = {"sessions.Session": "preset"} if "WITH_SESSIONS" in os.environ else {}
BASE_DIR = Path(__file__).parent
