"""The LDAP library, loaded without the warnings of its own old parts."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # It uses names that pyasn1 has meanwhile renamed, and keeps for it.
    warnings.simplefilter("ignore", DeprecationWarning)
    import ldap3
    from ldap3.core import exceptions as wrong
    from ldap3.utils.conv import escape_filter_chars
    from ldap3.utils.dn import parse_dn

__all__ = ["escape_filter_chars", "ldap3", "parse_dn", "wrong"]
