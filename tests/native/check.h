/* Ends the program with the line and the text of a condition that does not hold. */
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                   \
    do {                                                   \
        if (!(condition)) {                                \
            printf("line %d: %s\n", __LINE__, #condition); \
            exit(1);                                       \
        }                                                  \
    } while (0)
