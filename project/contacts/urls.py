from django.urls import path

from project.contacts import views

app_name = "contacts"
urlpatterns = [
    path("", views.index, name="index"),
    path("imports/sample/", views.import_sample, name="import-sample"),
    path("imports/<int:pk>/", views.show_import, name="import"),
    path("imports/<int:pk>/cancel/", views.cancel_import, name="cancel"),
    path("samples/<slug:name>.csv", views.download, name="sample"),
    path("webhooks/", views.webhooks, name="webhooks"),
]
