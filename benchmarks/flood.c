/* Connects to ports as fast as it can, until it is killed: flood KIND PORT...
   KIND: silent (says nothing), talk (says what no member says), close or reset (and ends it then).
   Connections that are not ended are kept until there are KEPT of them, then the oldest goes. */

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { THREADS = 2, KEPT = 200 };

static const char SAID[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
static const char *kind;
static int num_ports;
static char **ports;

static int is(const char *word) { return strcmp(kind, word) == 0; }

static void *flood(void *unused) {
  int kept[KEPT];
  unsigned number = 0;
  memset(kept, -1, sizeof kept);
  for (;;) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct timeval patience = {.tv_usec = 10000};
    int sock = socket(AF_INET, SOCK_STREAM, 0), *place = &kept[number % KEPT];
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(atoi(ports[number++ % num_ports]));
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(sock, (struct sockaddr *)&to, sizeof to) == 0) {
      if (!is("silent")) send(sock, SAID, sizeof SAID, MSG_NOSIGNAL);
      if (is("reset")) {
        struct linger none = {.l_onoff = 1};
        setsockopt(sock, SOL_SOCKET, SO_LINGER, &none, sizeof none);
      }
      if (is("silent") || is("talk")) {
        if (*place >= 0) close(*place);
        *place = sock;
        continue;
      }
    }
    close(sock);
  }
  return unused;
}

int main(int count, char **words) {
  pthread_t threads[THREADS];
  if (count < 3) return 2;
  kind = words[1];
  ports = words + 2;
  num_ports = count - 2;
  for (int number = 0; number < THREADS; number++)
    pthread_create(&threads[number], NULL, flood, NULL);
  pthread_join(threads[0], NULL);
  return 0;
}
