#include <stdio.h>

#include "quire.h"

int main(void)
{
    printf("quire %s\n", qr_version());
    return 0;
}
