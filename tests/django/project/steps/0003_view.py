from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_step")]
    operations = [
        migrations.RenameModel("Visit", "View"),
        migrations.RenameField("View", "page", "address"),
        migrations.RemoveField("Event", "tag"),
    ]
