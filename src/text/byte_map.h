/* byte_map.h: the byte-level alphabet (protocol.md 1.4). The 188 bytes 21..7E, A1..AC, AE..FF are the characters of
 * the same number; the other 68, in ascending order, are U+0100, U+0101, ... */
#ifndef QR_TEXT_BYTE_MAP_H
#define QR_TEXT_BYTE_MAP_H

#include "base/status.h"

/* The character of `byte`. */
uint32_t byte_map_character(uint8_t byte);
/* The byte of a character, or -1 for one outside the alphabet. */
int byte_map_byte(uint32_t cp);

/* Writes the bytes that the characters of `s` (well-formed UTF-8) stand for to `out` (room for n) and their number to
 * *length. false when a character is outside the alphabet. */
bool byte_map_to_bytes(const char *s, size_t n, uint8_t *out, size_t *length);
/* The inverse: bytes to characters, at most 2n bytes of UTF-8 in `out`. Returns their number. */
size_t byte_map_to_text(const uint8_t *bytes, size_t n, char *out);

#endif
