/* fresh_folder.h: the folder that a tool fills. */
#ifndef QR_TOOLS_FRESH_FOLDER_H
#define QR_TOOLS_FRESH_FOLDER_H

#include "base/status.h"

/* Makes the folder, or accepts an empty one. */
qr_status fresh_folder(const char *path, qr_error *err);

#endif
