"""Who may ask: the bearer of a token.

Owns the check of the header.  Knows nothing of what is asked.
"""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Depends, HTTPException, status
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer


class Bearer:
    """Lets a request pass only with a token; ``whose`` it is, is told who has none."""

    def __init__(self, token: str, whose: str) -> None:
        self._token = token
        self._whose = whose

    async def __call__(
        self,
        credentials: Annotated[
            HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))
        ],
    ) -> None:
        """Refuse a request that does not show the token."""
        given = f"Bearer {credentials.credentials}" if credentials else ""
        if not is_token(given, self._token):
            raise HTTPException(
                status.HTTP_401_UNAUTHORIZED,
                f"{self._whose}'s token is missing or wrong",
                headers={"WWW-Authenticate": "Bearer"},
            )


def is_token(header: str, token: str) -> bool:
    """Whether an Authorization header shows the token."""
    return hmac.compare_digest(header.encode(), f"Bearer {token}".encode())
