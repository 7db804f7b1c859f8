"""What `essaim students` says.  Key → (English, French)."""

from __future__ import annotations

from collections.abc import Mapping

CLASSROOM: Mapping[str, tuple[str, str]] = {
    # -- questions before something is lost
    "students.ask.lost": (
        "The disks of these machines are lost. Go on?",
        "Les disques de ces machines seront perdus. Continuer ?",
    ),
    "students.ask.reset": (
        "The disks of {count} machine(s) are lost. Go on?",
        "Les disques de {count} machine(s) seront perdus. Continuer ?",
    ),
    "students.ask.retire": (
        "{count} machine(s) are stopped and withdrawn. Go on?",
        "{count} machine(s) seront arrêtées et retirées. Continuer ?",
    ),
    "students.ask.retire_now": (
        "{count} machine(s) are stopped, and soon destroyed with their disks: grace is 0. Go on?",
        (
            "{count} machine(s) seront arrêtées, puis bientôt détruites avec leurs disques : "
            "le délai est de 0. Continuer ?"
        ),
    ),
    "students.ask.restore": (
        "What was written since {label} is lost. Go on?",
        "Tout ce qui a été écrit depuis {label} sera perdu. Continuer ?",
    ),
    "students.ask.remove": (
        "All machines of {roster} and their disks are lost. Go on?",
        "Toutes les machines de {roster} et leurs disques seront perdus. Continuer ?",
    ),
    "students.ask.forget": (
        "Essaim forgets these {count} machine(s) without asking site {site}. Go on?",
        "Essaim oubliera ces {count} machine(s) sans consulter le site {site}. Continuer ?",
    ),
    # -- what cannot be meant
    "students.name_one": (
        "name a ROSTER.csv, or --group together with --name",
        "indiquez un fichier PROMOTION.csv, ou --group avec --name",
    ),
    "students.names_nobody": ("{source} names nobody", "{source} ne contient personne"),
    "students.names_nobody_hint": (
        "a roster has a line, or a member, for each",
        "une promotion a une ligne, ou un membre, par personne",
    ),
    "students.most": (
        "more than half of the machines would be retired: is the roster whole?",
        "plus de la moitié des machines seraient retirées : le fichier est-il complet ?",
    ),
    "students.most_hint": ("say --most if it is", "ajoutez --most si c'est voulu"),
    "students.keeps_none": (
        "{roster}: {driver} machines keep no snapshots",
        "{roster} : les machines {driver} ne gardent pas d'instantanés",
    ),
    "students.keeps_none_hint": (
        "those of a Proxmox site do",
        "celles d'un site Proxmox le peuvent",
    ),
    # -- what was done, or will be
    "students.plan": (
        "{roster}: {kept} to keep, {changes} to change",
        "{roster} : {kept} à garder, {changes} à changer",
    ),
    "students.plan.enrol": ("to add", "à créer"),
    "students.plan.mend": ("to mend", "à réparer"),
    "students.plan.reset": ("to make anew", "à refaire"),
    "students.plan.wake": ("to start", "à démarrer"),
    "students.plan.withdraw": ("to retire", "à retirer"),
    "students.plan.remove": ("to destroy", "à détruire"),
    "students.plan.line": (
        "  {symbol} {count} {verb} ({reason}): {few}",
        "  {symbol} {count} {verb} ({reason}) : {few}",
    ),
    "students.plan.resting": (
        "  · {count} retired, in their grace: {few}",
        "  · {count} retirées, encore gardées : {few}",
    ),
    "students.plan.without": (
        "  · {count} gave theirs back: {few}",
        "  · {count} ont rendu la leur : {few}",
    ),
    "students.plan.outdated": (
        "  · {count} from another image (--reset makes them anew): {few}",
        "  · {count} issues d'une autre image (--reset les refait) : {few}",
    ),
    "students.unchanged": ("{roster}: nothing to change", "{roster} : rien à changer"),
    "students.nothing_to_retry": (
        "{roster}: nothing to try again",
        "{roster} : rien à réessayer",
    ),
    "students.nobody": (
        "{roster}: no machine to {verb}",
        "{roster} : aucune machine concernée par {verb}",
    ),
    "students.go_back": (
        "go back with: essaim students restore {roster} {label} [LOGIN…]",
        "pour y revenir : essaim students restore {roster} {label} [IDENTIFIANT…]",
    ),
    "students.removed": ("{roster}: nothing is left of it", "{roster} : il n'en reste rien"),
    "students.setting.site": ("site", "site"),
    "students.setting.image": ("image", "image"),
    "students.setting.size": ("size", "taille"),
    "students.settings_changed": (
        "{roster}: {what} was {before}, now {after}",
        "{roster} : {what} : {before} jusqu'ici, {after} désormais",
    ),
    "students.done": (
        "{roster}: {done} done{failed} in {took}  (run {run})",
        "{roster} : terminé pour {done} machine(s){failed} en {took}  (exécution {run})",
    ),
    "students.done_failed": (", {failed} failed", ", {failed} en échec"),
    "students.more_failed": (
        "  and {count} more: essaim students list {roster}",
        "  et {count} autres : essaim students list {roster}",
    ),
    "students.counts_none": ("nobody has a machine", "personne n'a de machine"),
    "students.retry_these": (
        "  → essaim students retry {roster} tries {count} again",
        "  → essaim students retry {roster} en réessaie {count}",
    ),
    "students.no_rosters": (
        "no rosters yet; make one with: essaim students apply FILE.csv",
        "aucune promotion ; créez-en une avec : essaim students apply FICHIER.csv",
    ),
    "seat.no_verb": ("{verb} is not one of {verbs}", "{verb} ne fait pas partie de {verbs}"),
    # -- a site that is away
    "site.lost": ("{what}: stopping", "{what} : arrêt"),
    "site.never": (
        "for what never comes back: {command} --forget",
        "pour ce qui ne reviendra jamais : {command} --forget",
    ),
    "site.power_unknown": (
        "{roster}: site {site} does not answer, so which machines are on is not known",
        "{roster} : le site {site} ne répond pas ; on ne sait pas quelles machines sont allumées",
    ),
    "students.forgotten": (
        "{roster}: {count} machine(s) forgotten",
        "{roster} : {count} machine(s) oubliées",
    ),
    "students.left_site": (
        "what may be left at site {site}, to be deleted by hand:",
        "ce qui peut rester sur le site {site}, à supprimer à la main :",
    ),
    "students.left_server": (
        "records may be left: {what}",
        "des enregistrements peuvent rester : {what}",
    ),
    # -- how far it is
    "students.progress": ("{roster}: {ended} of {total}", "{roster} : {ended} sur {total}"),
    "students.progress_failed": ("{failed} failed", "{failed} en échec"),
    "students.progress_rate": ("{rate} a minute", "{rate} par minute"),
    "students.progress_left": ("about {left} left", "encore {left} environ"),
    "students.tries_again": ("tries again: {why}", "nouvel essai : {why}"),
    # -- tables
    "students.headings": (
        "LOGIN|NAME|MACHINE|ADDRESS|STATE|SINCE|WHAT FAILED|WHAT TO DO",
        "IDENTIFIANT|NOM|MACHINE|ADRESSE|ÉTAT|DEPUIS|CE QUI A ÉCHOUÉ|QUE FAIRE",
    ),
    "students.rosters_headings": (
        "ROSTER|COMING|READY|FAILED|RETIRED|WITHOUT",
        "PROMOTION|EN CRÉATION|PRÊTES|EN ÉCHEC|RETIRÉES|RENDUES",
    ),
    "students.state.coming": ("coming", "en création"),
    "students.state.ready": ("ready", "prête"),
    "students.state.failed": ("failed", "en échec"),
    "students.state.stuck": ("stuck", "bloquée"),
    "students.state.retired": ("retired", "retirée"),
    "students.state.without": ("without", "rendue"),
    "students.count.coming": ("coming", "en création"),
    "students.count.ready": ("ready", "prête(s)"),
    "students.count.failed": ("failed", "en échec"),
    "students.count.stuck": ("stuck", "bloquée(s)"),
    "students.count.retired": ("retired", "retirée(s)"),
    "students.count.without": ("without", "rendue(s)"),
    "students.power.on": ("on", "allumée"),
    "students.power.off": ("off", "éteinte"),
    "students.power.absent": ("absent", "absente"),
    "students.until": ("{state} until {date}", "{state} jusqu'au {date}"),
    "students.codes_headings": ("LOGIN|NAME|MAIL|CODE", "IDENTIFIANT|NOM|COURRIEL|CODE"),
    # -- by the clock
    "lessons.headings": ("ROSTER|DOES|WHEN|NEXT", "PROMOTION|ACTION|QUAND|PROCHAINE FOIS"),
    "lessons.start": ("start", "démarrer"),
    "lessons.stop": ("stop", "arrêter"),
    "lessons.none": ("nothing is done by the clock", "rien n'est prévu à heure fixe"),
    "lessons.no_controller": (
        "saved; but no controller runs: start essaim serve or essaim controller",
        "enregistré ; mais aucun contrôleur ne tourne : lancez essaim serve ou essaim controller",
    ),
    "days.short": ("mon|tue|wed|thu|fri|sat|sun", "lun|mar|mer|jeu|ven|sam|dim"),
    "days.every": ("every day", "tous les jours"),
    # -- runs, as far as a school meets them
    "run.ask_lost": (
        "The disks of removed machines are lost. Go on?",
        "Les disques des machines supprimées seront perdus. Continuer ?",
    ),
    "run.stopped": (
        "{subject}: stopped; nothing is lost. Go on with the same command (run {run})",
        "{subject} : arrêté ; rien n'est perdu. La même commande continue (exécution {run})",
    ),
    "run.stopping": (
        "stopping; what is under way is finished first (Ctrl-C again leaves at once)",
        "arrêt ; ce qui est en cours se termine d'abord (Ctrl-C encore une fois pour quitter)",
    ),
    "run.leaving": (
        "leaving; the workers go on with it",
        "fin ici ; les workers continuent",
    ),
    "run.more": (
        "  → mend what failed; the same command goes on from there\n    essaim runs show {run}",
        "  → corrigez ce qui a échoué ; la même commande reprend de là\n    essaim runs show {run}",
    ),
    "run.same": ("the same on {count} more: {names}", "de même pour {count} autres : {names}"),
    "run.others": ("and {count} more: {names}", "et {count} autres : {names}"),
}
