"""A Django application: port, allowed hosts, "debug" or "", "csrf" or "".

Its settings are the framework's own but for what is needed to run at all."""

import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

port, hosts, debug, csrf = sys.argv[1:]


def messages(request):
    return HttpResponse(status=204)


settings.configure(
    DEBUG=debug == "debug",
    SECRET_KEY="of a test",
    ALLOWED_HOSTS=hosts.split(","),
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"],
    LOGGING_CONFIG=None,
)
django.setup()
urlpatterns = [path("messages", messages if csrf == "csrf" else csrf_exempt(messages))]


class Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        pass


make_server("127.0.0.1", int(port), get_wsgi_application(), handler_class=Quiet).serve_forever()
